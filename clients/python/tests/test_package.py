"""The built package, and the programs in its documents."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from conftest import Server

HERE = Path(__file__).parent.parent
ROOT = HERE.parent.parent


def snippets(document):
    text = (ROOT / document).read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


SNIPPETS = [
    pytest.param(code, id=f"{document}-{number}")
    for document in (
        "README.md",
        "docs/clients.md",
        "docs/guides/no-client.md",
        "docs/guides/single-flight.md",
        "docs/migrate/redis-py.md",
        "clients/python/README.md",
    )
    for number, code in enumerate(snippets(document))
    if "master_for" not in code and "ssl=True" not in code and "RedisCluster(" not in code
]


def test_there_are_snippets():
    assert len(SNIPPETS) >= 5


@pytest.mark.parametrize("code", SNIPPETS)
def test_what_is_shown_runs(server, code):
    code = code.replace("6379", str(server.port))
    code = re.sub(r"\bRedis\((?=\)|decode_)", f"Redis(port={server.port}, ", code)
    assert str(server.port) in code
    ran = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning", "-c", code],
        capture_output=True, text=True, timeout=20,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    # No lock is left. A program may store its results.
    assert {server.redis.type(key) for key in server.redis.keys()} <= {b"string"}
    assert "somebody else" not in ran.stdout and "was lost" not in ran.stdout
    fences = [int(fence) for fence in re.findall(r"with fence (\d+)", ran.stdout)]
    assert fences == sorted(set(fences))


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
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "3 passed" in ran.stdout, ran.stdout + ran.stderr


def connecting_with(text):
    """Return the program that makes a Locks object with this client."""
    (code,) = (it for it in snippets("clients/python/README.md") if text in it)
    lines = code.splitlines(keepends=True)
    return "".join(line for line in lines if text in line or not line.startswith("locks ="))


def takes_a_lock(code):
    """Run a program that makes a Locks object, and let it take a lock."""
    code += "with locks.lock('k') as lock: print(lock.owned())\n"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (ran.stdout, ran.stderr) == ("True\n", ""), ran.stderr


def test_sentinel_is_shown(sentinel):
    takes_a_lock(connecting_with("master_for").replace("26379", str(sentinel)))


def test_tls_is_shown():
    server = Server("tls")
    try:
        port, certificate = server.more
        code = connecting_with("ssl=True").replace("6390", port).replace("ca.crt", certificate)
        takes_a_lock(code)
    finally:
        server.stop()


def test_a_cluster_is_shown():
    server = Server("cluster", 1)
    try:
        takes_a_lock(connecting_with("RedisCluster(").replace("7001", str(server.port)))
    finally:
        server.stop()


def test_the_package_is_typed_and_has_the_modules_version(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check",
         "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(HERE)],
        check=True, timeout=60,
    )  # fmt: skip
    cargo = (ROOT / "Cargo.toml").read_text()
    version = re.search(r'^version = "(.*)"$', cargo, re.MULTILINE)[1]
    (wheel,) = os.listdir(tmp_path)
    assert wheel == f"redis_lock_client-{version}-py3-none-any.whl"
    names = zipfile.ZipFile(tmp_path / wheel).namelist()
    assert "redislock/py.typed" in names
    assert "redislock/asyncio.py" in names
    assert not [name for name in names if "test" in name]
    assert len([name for name in names if "LICENSE" in name]) == 3


def test_a_source_package_has_the_licences_of_the_project(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(build, cwd=HERE, check=True, timeout=60, stdout=subprocess.DEVNULL)
    (built,) = tmp_path.iterdir()
    with tarfile.open(built) as files:
        for name in ("LICENSE", "LICENSE-APACHE", "LICENSE-MIT"):
            packed = files.extractfile(f"{built.name.removesuffix('.tar.gz')}/{name}")
            assert packed.read() == (ROOT / name).read_bytes()
