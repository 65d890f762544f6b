"""ARPA files: n-gram models as text, read by most decoders."""

from pathlib import Path

from asr.errors import UserError
from asr.files import atomic_write, read_lines
from asr.ngrams.model import BackoffModel, Ngram


def write_arpa(path: Path, model: BackoffModel) -> None:
    """Write ``model``, atomically; the highest order has no backoff weights."""
    with atomic_write(path) as partial, open(partial, "w", encoding="utf-8", newline="\n") as file:
        file.write("\\data\\\n")
        for length, table in enumerate(model.entries, start=1):
            file.write(f"ngram {length}={len(table)}\n")
        for length, table in enumerate(model.entries, start=1):
            file.write(f"\n\\{length}-grams:\n")
            for ngram, (probability, backoff) in table.items():
                weight = f"\t{backoff:.7f}" if length < model.order else ""
                file.write(f"{probability:.7f}\t{' '.join(ngram)}{weight}\n")
        file.write("\n\\end\\\n")


def read_arpa(path: Path) -> BackoffModel:
    """Read a model; UserError names the file and the line that is not as the format has it."""
    lines = read_lines(path)
    sizes: list[int] = []
    entries: list[dict[Ngram, tuple[float, float]]] = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if text.startswith("ngram "):
            count = text.partition("=")[2].strip()
            if not count.isdecimal():
                raise UserError(f"{path}:{number}: {text!r} counts no n-grams")
            sizes.append(int(count))
        elif text == f"\\{len(entries) + 1}-grams:":
            entries.append({})
        elif text == "\\end\\":
            break
        elif entries and text:
            try:
                ngram, entry = _entry(text, len(entries))
            except ValueError:
                raise UserError(
                    f"{path}:{number}: expected a log10 probability, {len(entries)} words and "
                    f"perhaps a backoff weight, not {text!r}"
                ) from None
            entries[-1][ngram] = entry
    else:
        raise UserError(f"{path}: no \\end\\ line; the file is cut short, or no ARPA file")
    if [len(table) for table in entries] != sizes:
        raise UserError(f"{path}: its \\data\\ lines do not count the n-grams that are in it")
    return BackoffModel(entries)


def _entry(text: str, length: int) -> tuple[Ngram, tuple[float, float]]:
    """ValueError unless ``text`` is an n-gram of ``length`` words with its numbers."""
    fields = text.split()
    if len(fields) not in (length + 1, length + 2):
        raise ValueError(text)
    backoff = float(fields[-1]) if len(fields) == length + 2 else 0.0
    return tuple(fields[1 : length + 1]), (float(fields[0]), backoff)
