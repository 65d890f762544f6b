"""Archives by a real HTTP server: resumed, checked, and unpacked only inside their folder."""

import hashlib
import http.server
import io
import tarfile
import threading

import pytest

from asr.corpora import archives
from asr.corpora.archives import Archive, obtain, unpack
from asr.errors import UserError


def tar(members, kind="w:gz"):
    """An archive of ``{name: contents}``; None is a link."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode=kind) as archive:
        for name, contents in members.items():
            member = tarfile.TarInfo(name)
            if contents is None:
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            else:
                member.size = len(contents)
            archive.addfile(member, io.BytesIO(contents or b""))
    return data.getvalue()


class Site:
    """Serves one file, with ranges; may stop after some bytes, or answer with an error."""

    def __init__(self):
        self.data, self.requests, self.stops_after, self.status = (
            tar({"a/x": b"1" * 9000}),
            [],
            [],
            200,
        )
        self.ranges = True
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                site.answer(self)

            def log_message(self, *arguments):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/corpora/a.tar.gz"

    def answer(self, request):
        wanted = request.headers.get("Range")
        self.requests.append(wanted)
        if self.status != 200:
            request.send_error(self.status)
            return
        first = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.ranges else 0
        body = self.data[first:]
        request.send_response(206 if first else 200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body[: self.stops_after.pop(0)] if self.stops_after else body)


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setattr(archives, "PAUSE_SECONDS", 0.01)
    served = Site()
    yield served
    served.server.shutdown()


def digest(site, kind="sha256"):
    return {kind: hashlib.new(kind, site.data).hexdigest()}


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_downloads_checks_and_does_neither_twice(site, tmp_path, kind, monkeypatch):
    archive = Archive(site.url, **digest(site, kind))
    (path,) = obtain([archive], None, tmp_path)
    assert path == tmp_path / "a.tar.gz" and path.read_bytes() == site.data
    monkeypatch.setattr(hashlib, "file_digest", None)
    assert obtain([archive], None, tmp_path) == [path]
    assert site.requests == [None]


def test_goes_on_where_the_connection_ended(site, tmp_path):
    site.stops_after = [50, 40]
    (path,) = obtain([Archive(site.url, **digest(site))], None, tmp_path)
    assert path.read_bytes() == site.data
    assert site.requests == [None, "bytes=50-", "bytes=90-"]


def test_begins_anew_where_the_server_knows_no_ranges(site, tmp_path):
    site.ranges, site.stops_after = False, [50]
    (path,) = obtain([Archive(site.url)], None, tmp_path)
    assert path.read_bytes() == site.data


def test_goes_on_in_another_run(site, tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "ATTEMPTS", 1)
    site.stops_after = [60]
    with pytest.raises(UserError, match=r"go on from 60 bytes, or give corpus_dir=, or mirror="):
        obtain([Archive(site.url)], None, tmp_path)
    (path,) = obtain([Archive(site.url)], None, tmp_path)
    assert path.read_bytes() == site.data and site.requests[-1] == "bytes=60-"


def test_an_address_that_is_not_there_is_not_tried_again(site, tmp_path):
    site.status = 404
    with pytest.raises(UserError, match=r"a\.tar\.gz: HTTP Error 404"):
        obtain([Archive(site.url)], None, tmp_path)
    assert len(site.requests) == 1


def test_another_content_than_the_published_one_is_refused(site, tmp_path):
    with pytest.raises(UserError, match=r"its md5 is [0-9a-f]+, published is 0+; delete"):
        obtain([Archive(site.url, md5="0" * 32)], None, tmp_path)


def test_a_file_that_changed_is_checked_again(site, tmp_path):
    archive = Archive(site.url, **digest(site))
    (path,) = obtain([archive], None, tmp_path)
    path.write_bytes(b"other")
    with pytest.raises(UserError, match="published is"):
        obtain([archive], None, tmp_path)


def test_a_full_disk_is_told_before_the_download(site, tmp_path, monkeypatch):
    usage = archives.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda path: usage._replace(free=100))
    with pytest.raises(UserError, match=r"no room for the \d+ bytes of http"):
        obtain([Archive(site.url)], None, tmp_path)


def test_a_mirror_is_used_where_it_is(site, tmp_path):
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    with pytest.raises(UserError, match=r"mirror has no such archive; http"):
        obtain([Archive(site.url)], mirror, tmp_path / "downloads")
    (mirror / "a.tar.gz").write_bytes(site.data)
    assert obtain([Archive(site.url)], mirror, tmp_path / "downloads") == [mirror / "a.tar.gz"]
    assert not site.requests and not (tmp_path / "downloads").exists()


@pytest.mark.parametrize("kind", ["w:gz", "w"])
def test_unpacks_all_or_nothing(tmp_path, kind):
    first, second = tmp_path / "1.tar", tmp_path / "2.tar"
    first.write_bytes(tar({"c/a.txt": b"one"}, kind))
    second.write_bytes(tar({"c/b/d.txt": b"two", "c/e.txt": b""}, kind))
    unpack([first, second], tmp_path / "out")
    names = sorted(
        p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*")
    )
    assert names == ["c", "c/a.txt", "c/b", "c/b/d.txt", "c/e.txt"]
    second.write_bytes(second.read_bytes()[:-600] if kind == "w:gz" else b"no archive at all" * 99)
    with pytest.raises(UserError, match=r"2\.tar: cannot be unpacked"):
        unpack([first, second], tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("damage", ["middle", "end", "header", "zeros", "checksum"])
@pytest.mark.parametrize("kind", ["w", "w:gz", "w:xz"])
def test_a_damaged_archive_is_not_half_an_archive(tmp_path, damage, kind):
    noise = bytes(range(256)) * 40
    data = bytearray(tar({f"c/{i}": noise[i:] for i in range(5)}, kind))
    plain = kind == "w"
    if damage == "zeros":
        data = bytearray(len(data))
    elif damage == "end":
        del data[len(data) // 2 :]
    elif damage == "header" and plain:
        data[512 + 10_240 + 5] ^= 1  # in the second member's
    elif damage == "checksum" and not plain:
        data[-6] ^= 1
    elif damage == "middle" and not plain:
        data[len(data) // 2] ^= 255
    else:
        pytest.skip("a plain archive has no checksum of its contents")
    (tmp_path / "a.tar").write_bytes(data)
    with pytest.raises(UserError, match=r"a\.tar: cannot be unpacked"):
        unpack([tmp_path / "a.tar"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def linking(links, **files):
    """A tar archive with symbolic links ``{name: target}``, then files."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, target in links.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
        for name, contents in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(contents)
            archive.addfile(member, io.BytesIO(contents))
    return data.getvalue()


def test_links_inside_the_folder_are_kept_and_plain_files_laid_beside(tmp_path):
    path, plain = tmp_path / "a.tar", tmp_path / "list.tsv.gz"
    links = {"c/legacy/train/sph": "../../data/sph", "c/b": "./data"}
    path.write_bytes(linking(links, **{"c/data/sph/a": b"audio"}))
    plain.write_bytes(b"rows")
    unpack([path], tmp_path / "out", [plain])
    assert (tmp_path / "out/c/legacy/train/sph/a").read_bytes() == b"audio"
    assert (tmp_path / "out/list.tsv.gz").read_bytes() == b"rows"
    assert Archive("http://x/list.tsv.gz").is_plain
    assert not any(Archive(f"http://x/a.{end}").is_plain for end in ("tar", "tgz", "tar.xz"))


@pytest.mark.parametrize(
    ("links", "files"),
    [
        ({"a/b": "/etc"}, {}),
        ({"a/b": "../../x"}, {}),
        ({"b": ".."}, {}),
        ({"a/b": ".", "c": "a/b/../../x"}, {}),
        ({"a/b": ".."}, {"a/b/x": b"through a link"}),
        ({"a/b": "c"}, {"a/b": b"through a link"}),
    ],
)
def test_no_link_leaves_the_folder_and_nothing_is_written_through_one(tmp_path, links, files):
    path = tmp_path / "a.tar"
    path.write_bytes(linking(links, **files))
    with pytest.raises(UserError, match=r"would leave"):
        unpack([path], tmp_path / "inside" / "out")
    assert not (tmp_path / "inside" / "out").exists()


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "link"])
def test_no_member_leaves_the_folder(tmp_path, name):
    path = tmp_path / "a.tar"
    path.write_bytes(tar({"fine": b"x", name: None if name == "link" else b"x"}))
    with pytest.raises(UserError, match=r"would leave|neither file nor folder"):
        unpack([path], tmp_path / "inside" / "out")
    assert not list(tmp_path.rglob("evil")) and not (tmp_path / "inside" / "out").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "ftp://x/y.tar"}, "no http"),
        ({"url": "https://x/"}, "no http"),
        ({"url": "https://x/y.tar", "sha256": "abc"}, "sha256='abc' is not 64"),
        ({"url": "https://x/y.tar", "md5": "Z" * 32}, "is not 32"),
    ],
)
def test_what_is_no_archive_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Archive(**settings)
