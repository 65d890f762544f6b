"""The comparison report.

``inputs`` reads what systems made; ``content`` makes of it what ``report.json`` holds, which is
where every number comes from; ``tables`` words these numbers once; ``text`` and ``page`` lay the
same tables out as ``report.txt`` and ``report.html``.
"""
