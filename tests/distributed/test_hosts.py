"""Ranks on two hosts that TCP joins: `infinicore run --hosts a,b`, as a user types it. Needs root and `ip`.

The hosts are network namespaces of this machine with addresses and host names of their own, joined by a cable (veth).
Open MPI reaches the other one as it would by `ssh`: through an agent, `agent HOST COMMAND...`.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
_AGENT = """#!/bin/sh
host=$1; shift
exec ip netns exec "$host" unshare --uts sh -c "hostname $host; $*"
"""
_NAMES = Path("/etc/netns")  # NAMES/HOST/hosts is what processes of HOST see as /etc/hosts


def _ip(*words, check=True):
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=check, timeout=20).stdout


class Hosts:
    """Two hosts, which `close` ends with all their processes. OSError or CalledProcessError where they cannot be."""

    def __init__(self, folder):
        number = os.getpid() % 65536
        self.names = [f"ic{number:x}{side}" for side in "ab"]
        self.agent = folder / "agent"
        self.agent.write_text(_AGENT)
        self.agent.chmod(0o755)
        addresses = [f"10.{64 + number // 256 % 64}.{number % 256}.{one}" for one in (1, 2)]
        table = "127.0.0.1 localhost\n" + "".join(f"{a} {name}\n" for a, name in zip(addresses, self.names))
        try:
            for name in self.names:
                _ip("netns", "add", name)
                (_NAMES / name).mkdir(parents=True)
                (_NAMES / name / "hosts").write_text(table)
            _ip("link", "add", "cable", "netns", self.names[0], "type", "veth", "peer", "cable", "netns", self.names[1])
            for name, address in zip(self.names, addresses):
                _ip("-n", name, "addr", "add", f"{address}/24", "dev", "cable")
                for device in ("lo", "cable"):
                    _ip("-n", name, "link", "set", device, "up")
        except BaseException:
            self.close()
            raise

    def start(self, line, environment):
        """A process of the first host: a `Popen`."""
        line = [str(self.agent), self.names[0], " ".join(map(str, ("exec", *line)))]
        environment = environment | {"PRTE_MCA_plm_ssh_agent": str(self.agent)}
        return subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def cut(self):
        """Take the second host from the network."""
        _ip("-n", self.names[1], "link", "set", "cable", "down")

    def join(self):
        """Undo `cut`."""
        _ip("-n", self.names[1], "link", "set", "cable", "up")

    def processes(self, names=None):
        """The process numbers of some hosts, of both."""
        found = " ".join(_ip("netns", "pids", name, check=False) for name in names or self.names)
        return [int(word) for word in found.split()]

    def told(self, names=None):
        """What each process of some hosts, of both, runs and does: {number: (command line, state)}."""
        found = {}
        for number in self.processes(names):
            try:
                folder = Path(f"/proc/{number}")
                state = folder.joinpath("status").read_text().split("State:\t")[1].split("\n")[0]
                found[number] = folder.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(), state
            except OSError:  # it has ended
                continue
        return found

    def kill(self, names=None):
        """End all processes."""
        for process in self.processes(names):
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def close(self):
        """End all processes, and take both hosts away."""
        self.kill()
        for name in self.names:
            _ip("netns", "del", name, check=False)
            shutil.rmtree(_NAMES / name, ignore_errors=True)


@pytest.fixture(scope="module")
def hosts(ranks, tmp_path_factory):
    """Two hosts; skips where they cannot be made."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare"))):
        pytest.skip("network namespaces need root, and the programs `ip` (iproute2) and `unshare`")
    try:
        found = Hosts(tmp_path_factory.mktemp("hosts"))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
    yield found
    found.close()


@pytest.fixture
def start(hosts, python_path):
    """`start(program, *arguments)`: `infinicore run -n 4 --hosts a,b program`, two ranks on each."""

    def run(program, *arguments, timeout=60):
        line = [sys.executable, "-m", "infinicore", "run", "-n", 4, "--hosts", ",".join(hosts.names)]
        variables = {"INFINICORE_NUM_THREADS": "1", "PYTHONPATH": python_path, "INFINICORE_COMM_TIMEOUT": str(timeout)}
        variables["OMPI_MCA_mpi_yield_when_idle"] = "1"  # the hosts share CPUs, which Open MPI does not know
        return hosts.start([*line, PROGRAMS / program, *arguments], os.environ | variables)

    yield run
    hosts.join()


@pytest.mark.parametrize("program", ["collectives.py", "hosts.py"])
def test_two_hosts_equal_one_process(start, hosts, program):
    done = start(program)
    told, _ = done.communicate(timeout=120)
    assert done.returncode == 0, told[-4000:]
    assert told.count("done") == 4, told


@pytest.mark.parametrize("power", ["off", pytest.param("on", marks=pytest.mark.slow)])
def test_a_host_that_is_gone_ends_the_job(start, hosts, power):
    job = start("hosts.py", "forever", timeout=12)  # `mpiexec` may wait longer for an answer
    for line in job.stdout:
        if "begins" in line:
            break
    begin = time.monotonic()
    hosts.cut()
    if power == "off":
        hosts.kill(hosts.names[1:])
    told, _ = job.communicate(timeout=40)
    assert time.monotonic() - begin < 30
    assert job.returncode not in (0, None), told
    assert "a host of this job cannot be reached any more" in told
    while hosts.processes(hosts.names[:1]) and time.monotonic() - begin < 30:
        time.sleep(0.2)
    assert not hosts.told(hosts.names[:1])
    hosts.kill()  # where the second one has power, it takes TCP a quarter of an hour to see that nobody answers
