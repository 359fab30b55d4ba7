"""The built package, and the programs in its documents."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from conftest import in_thread

from redislock import Locks

HERE = Path(__file__).parent.parent
ROOT = HERE.parent.parent
DOCUMENTS = (
    "README.md",
    "docs/clients.md",
    "docs/guides/no-client.md",
    "docs/guides/single-flight.md",
    "docs/guides/waiting.md",
    "docs/migrate/redis-py.md",
    "clients/python/README.md",
)


def snippets(document):
    text = (ROOT / document).read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def python(*words):
    """Run Python, and return what it has printed."""
    ran = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout + ran.stderr
    return ran.stdout


SNIPPETS = [
    pytest.param(code, id=f"{document}-{number}")
    for document in DOCUMENTS
    for number, code in enumerate(snippets(document))
    if "master_for" not in code
]


def test_there_are_snippets():
    assert len(SNIPPETS) >= 5


@pytest.mark.parametrize("code", SNIPPETS)
def test_what_is_shown_runs(server, code):
    code = code.replace("6379", str(server.port))
    code = re.sub(r"\bRedis\((?=\)|decode_)", f"Redis(port={server.port}, ", code)
    assert str(server.port) in code
    said = python("-W", "error::DeprecationWarning", "-c", code)
    # No lock is left. A program may store its results.
    assert {server.redis.type(key) for key in server.redis.keys()} <= {b"string"}
    assert "somebody else" not in said and "was lost" not in said
    fences = [int(fence) for fence in re.findall(r"with fence (\d+)", said)]
    assert fences == sorted(set(fences))


def test_the_lines_for_sentinel_tls_and_a_cluster_get_a_lock(server, start):
    sentinel = start("sentinel", "mymaster", server.port)
    tls, cluster = start("tls"), start("cluster", 1)
    (code,) = (it for it in snippets("clients/python/README.md") if "master_for" in it)
    lines = code.splitlines()
    others = [line for line in lines if not line.startswith("locks =")]
    shown = [line for line in lines if line.startswith("locks =")]
    port, certificate = tls.more
    for text, place, real in (
        ("master_for", "26379", sentinel.port),
        ("ssl=True", "6390", port),
        ("RedisCluster(", "7001", cluster.port),
    ):
        (line,) = (it for it in shown if text in it)
        line = line.replace(place, str(real)).replace("ca.crt", certificate)
        use = "with locks.lock('k') as lock: print(lock.owned())"
        assert python("-c", "\n".join([*others, line, use])) == "True\n", text


def test_only_as_many_wait_as_the_guide_admits(server):
    (code,) = snippets("docs/guides/waiting.md")
    names = {}
    exec(code.replace("redis.Redis()", f"redis.Redis(port={server.port})"), names)
    work = names["work"]
    server.other_holds("orders:42")
    admitted = [in_thread(work) for _ in range(3)]
    server.until_waiting("orders:42", 3)
    assert in_thread(work)() == "two wait already"
    server.other_releases("orders:42")
    assert all("fence" in result() for result in admitted)
    assert "fence" in work()


def calls(page):
    """Return the calls in the columns headed Python of a page."""
    found, column = [], None
    for line in (ROOT / "docs/migrate" / page).read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if "Python" in cells:
            column = cells.index("Python")
        elif column is None or not line.startswith("|"):
            column = None
        else:
            found += re.findall(r"`((?:grant = |with )?(?:locks?|grant)\b.*?)`", cells[column])
    return found


@pytest.mark.parametrize("page, count", [("redis-py.md", 11), ("set-nx.md", 5)])
def test_each_call_of_a_migration_page_runs(server, page, count):
    locks = Locks(server.redis)
    names = {"locks": locks, "lock": locks.lock("orders:42")}
    found = calls(page)
    assert len(found) == count
    for call in found:
        # What acquires finds the lock free, and every other call finds it held by the grant.
        locks.release_all()
        acquires = "acquire" in call or call.startswith("with")
        names["grant"] = None if acquires else names["lock"].acquire()
        if acquires:
            exec(call + (" pass" if call.startswith("with") else ""), names)
            assert names["grant"].fence > 0, call
        else:
            assert eval(call, names), call
    locks.release_all()


@pytest.mark.parametrize("code", snippets("docs/guides/no-client.md"))
def test_a_program_without_the_library_waits_and_stops_after_a_loss(server, code):
    server.other_holds("orders:42")
    code = [sys.executable, "-u", "-c", code.replace("6379", str(server.port))]
    pipe = subprocess.PIPE
    with subprocess.Popen(code, stdout=pipe, stderr=pipe, text=True) as program:
        server.until_waiting("orders:42")
        server.other_releases("orders:42")
        assert program.stdout.readline().startswith("write step 0")
        server.redis.delete("orders:42")
        rest, errors = program.communicate(timeout=20)
    # The renewal after a third of the lease finds the loss.
    assert (program.returncode, errors) == (1, "the lock was lost\n")
    assert "write step 3" not in rest


def test_the_page_on_testing_shows_tests_that_pass(tmp_path):
    (code,) = snippets("docs/guides/testing.md")
    (tmp_path / "test_orders.py").write_text(code)
    assert "3 passed" in python("-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path))


def test_the_package_is_typed_and_has_the_modules_version(tmp_path):
    pip = "-m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation"
    python(*pip.split(), "--wheel-dir", str(tmp_path), str(HERE))
    cargo = (ROOT / "Cargo.toml").read_text()
    version = re.search(r'^version = "(.*)"$', cargo, re.MULTILINE)[1]
    (wheel,) = os.listdir(tmp_path)
    assert wheel == f"redis_lock_client-{version}-py3-none-any.whl"
    names = zipfile.ZipFile(tmp_path / wheel).namelist()
    assert {"redislock/py.typed", "redislock/asyncio.py"} <= set(names)
    assert not [name for name in names if "test" in name]
    assert len([name for name in names if "LICENSE" in name]) == 3


def test_a_source_package_has_the_licences_of_the_project(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(build, cwd=HERE, check=True, timeout=60, stderr=subprocess.DEVNULL)
    (built,) = tmp_path.iterdir()
    with tarfile.open(built) as files:
        for name in ("LICENSE", "LICENSE-APACHE", "LICENSE-MIT"):
            packed = files.extractfile(f"{built.name.removesuffix('.tar.gz')}/{name}")
            assert packed.read() == (ROOT / name).read_bytes()
