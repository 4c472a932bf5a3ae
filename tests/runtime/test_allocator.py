import subprocess
import sys


def test_memory_can_be_kept_in_another_process():
    """In a process of its own, because it cannot be undone."""
    program = "from fscil.runtime.allocator import tune_allocator; print(tune_allocator(), tune_allocator())"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert found in (["True", "True"], ["False", "False"])
    if (
        sys.platform == "linux"
        and "glibc"
        in subprocess.run(
            [sys.executable, "-c", "import platform; print(platform.libc_ver()[0])"], capture_output=True, text=True
        ).stdout
    ):
        assert found[0] == "True"


def test_the_example_is_true():
    program = "import doctest, fscil.runtime.allocator; print(*doctest.testmod(fscil.runtime.allocator))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "0 2\n"


def test_other_systems_go_without():
    program = (
        "import sys; sys.platform = 'win32'; from fscil.runtime.allocator import tune_allocator; "
        "print(tune_allocator())"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert found == "False\n"
