"""The command that adds an extra: from wherever fscil was installed."""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

from fscil.runtime.extras import install_command

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("origin", "wanted"),
    [
        ({"url": "file:///home/me/fs%20cil", "dir_info": {"editable": True}}, '-e "/home/me/fs cil[serve,heic]"'),
        ({"url": "file:///home/me/fscil", "dir_info": {}}, '"/home/me/fscil[serve,heic]"'),
        (
            {"url": "https://example.org/me/fscil", "vcs_info": {"vcs": "git", "commit_id": "0" * 40}},
            '"fscil[serve,heic] @ git+https://example.org/me/fscil"',
        ),
        (
            {"url": "file:///tmp/fscil-0.2.0-py3-none-any.whl", "archive_info": {}},
            '"fscil[serve,heic] @ file:///tmp/fscil-0.2.0-py3-none-any.whl"',
        ),
        (None, '"fscil[serve,heic]"'),  # from an index
    ],
)
def test_from_where_it_was_installed(tmp_path, monkeypatch, origin, wanted):
    """Against a real installed distribution, as pip records it (PEP 610)."""
    info = tmp_path / "fscil-0.2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fscil\nVersion: 0.2.0\n")
    if origin:
        (info / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert importlib.metadata.version("fscil") == "0.2.0"
    assert install_command("serve", "heic") == f"pip install {wanted}"


def test_from_a_clone_that_is_not_installed(tmp_path):
    code = "from fscil.runtime.extras import install_command; print(install_command('serve'))"
    program = f"import sys; sys.path[:0] = [{str(ROOT / 'src')!r}]; {code}"
    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == f'pip install -e "{ROOT}[serve]"\n', done.stderr
