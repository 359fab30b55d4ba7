"""The built package, and the programs in its documents."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

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
        "docs/migrate/redis-py.md",
        "clients/python/README.md",
    )
    for number, code in enumerate(snippets(document))
]


def test_there_are_snippets():
    assert len(SNIPPETS) >= 5


@pytest.mark.parametrize("code", SNIPPETS)
def test_what_is_shown_runs(server, code):
    code = code.replace("6379", str(server.port)).replace("Redis()", f"Redis(port={server.port})")
    assert str(server.port) in code
    ran = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning", "-c", code],
        capture_output=True, text=True, timeout=20,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    assert server.redis.dbsize() == 0
    assert "somebody else" not in ran.stdout and "was lost" not in ran.stdout
    fences = [int(fence) for fence in re.findall(r"with fence (\d+)", ran.stdout)]
    assert fences == sorted(set(fences))


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
