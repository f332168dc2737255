"""The machine that kernels are compiled for, as LLVM sees it, and the folder where what is made for it is kept.

LLVM's answer is remembered beside the kernels, since asking means loading LLVM. It belongs to what the system says of
the CPU and to the version of llvmlite.
"""

import contextlib
import functools
import os
import sys
import zlib
from importlib.util import find_spec
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

try:  # `hashlib` loads OpenSSL, which takes 3 ms
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

_VARIES = ("processor", "cpu MHz", "bogomips", "physical id", "core id", "apicid", "initial apicid", "BogoMIPS")


def digest(data, size=32):
    """`size` bytes of BLAKE2b (RFC 7693) of bytes or a text, as hexadecimal digits."""
    return blake2b(data.encode() if isinstance(data, str) else data, digest_size=size).hexdigest()


def root():
    """The cache directory of this user: `INFINICORE_CACHE_DIR`, else the platform's."""
    given = os.environ.get("INFINICORE_CACHE_DIR")
    if given:
        return Path(given)
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "infinicore"


def version(package):
    """A text that differs between versions of a package. Its metadata would take 12 ms to load."""
    folder = Path(find_spec(package).origin).parent
    for name in ("VERSION", "_version.py"):
        with contextlib.suppress(OSError):
            return (folder / name).read_text()
    from importlib.metadata import version

    return version(package)


def described():
    """What Linux says of the first CPU, without what varies between two of them; "" elsewhere."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = file.read(1 << 14).partition("\n\n")[0].splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    return "\n".join(line for line in lines if line.partition(":")[0].strip() not in _VARIES)


@functools.cache
def cpu():
    """(LLVM's name of this CPU, {feature: whether it has it})."""
    text = described()
    key = digest(f"{text} {version('llvmlite')}", 10)
    path = root() / f"host-{key}.txt"
    found = _remembered(path) if text else None
    if found is None:
        import llvmlite.binding as llvm

        found = llvm.get_host_cpu_name(), dict(llvm.get_host_cpu_features())
        if text:
            _remember(path, *found)
    return found


def _remembered(path):
    """The answer in a file, or None if it is missing or damaged."""
    text = kept(path)
    if text is None:
        return None
    name, *features = text.split()
    return name, {feature[1:]: feature[0] == "+" for feature in features}


def _remember(path, name, features):
    keep(path, " ".join([name, *("-+"[on] + feature for feature, on in features.items())]))


def notes_at(kind, whose=""):
    """The file of the cache that keeps notes of this installation's files."""
    return root() / f"{kind}-{zlib.crc32(f'{__file__}{whose}'.encode()):08x}.json"


def kept(path):
    """The text that `keep` wrote to a file, or None if it is missing or damaged."""
    try:
        found, _, text = path.read_text().partition("\n")
    except (OSError, UnicodeDecodeError):
        return None
    return text if found == digest(text) else None


def keep(path, text):
    """Write a text to a file of the cache, for processes that find it; where it cannot be written, they do without."""
    write(path, f"{digest(text)}\n{text}".encode())


def write(path, data):
    """The same of bytes, whose reader sees by itself whether they are whole."""
    temporary = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError:
        pass


@contextlib.contextmanager
def turn(path, wait=True):
    """A block that one process at a time runs for a file, while others wait; gives whether it is this one's turn.

    Without `wait` it never waits, and may give False. The system lets go of a lock when its holder dies. Where nothing
    can be locked (a directory that cannot be written, a file system without locks), it is everyone's turn.
    """
    lock, handle, ours = path.with_suffix(".lock"), None, True
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(lock, os.O_RDWR | os.O_CREAT)
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        ours = False
    except (OSError, AttributeError):  # no such lock here
        pass
    try:
        yield ours
    finally:
        if handle is not None:
            if ours:
                with contextlib.suppress(OSError):
                    lock.unlink()  # who waits for it finds the file; what failed may be tried twice at once
                    fcntl.flock(handle, fcntl.LOCK_UN)  # a forked child may hold it too
            os.close(handle)
