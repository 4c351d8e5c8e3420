"""infer.sh with a model server, played by a stand-in: it starts, is watched, and each one's death ends the other."""

import signal
from pathlib import Path

from driving import PASSES, until
from launching import Runner
from rolloutgen.processes import marked

from .launched import WAIT_SEC, environ_of, gateway_of, mark_of, nothing_is_left, server_of


def server_texts(runner: Runner) -> list[str]:
    files = [record.folder / "server.json" for record in runner.records()]
    return [file.read_text() for file in files if file.exists()]


def test_status_knows_a_launch_that_makes_its_model(served: Runner) -> None:
    """Before a launch has a record it may make an environment and a model, for minutes."""
    site = served.site
    script = site.folder / "slow_setup.sh"
    script.write_text("sleep 304\n")
    site.keys |= {"MODEL_PATH": str(site.folder / "not-yet"), "MODEL_SETUP": str(script)}
    process = served.start()
    until(lambda: "setting up: launch " in site.command("status").stdout, "a launch that sets up")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=WAIT_SEC) == 143
    assert "never started: " in site.command("status").stdout


def test_a_signal_ends_server_and_driver(served: Runner) -> None:
    process = served.start()
    served.driver()
    mark, server = mark_of(served), server_of(served)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=WAIT_SEC) == 143
    assert nothing_is_left(served, mark, server)
    assert served.last_line.startswith("=== inference incomplete: interrupted by SIGTERM")


def test_a_server_that_dies_for_good_ends_the_driver_at_once(served: Runner) -> None:
    served.site.keys["VLLM_RESTARTS"] = "0"
    process = served.start()
    served.driver()
    mark, server = mark_of(served), server_of(served)
    assert server.vllm is not None
    server.vllm.signal(signal.SIGKILL)
    assert process.wait(timeout=WAIT_SEC) == 1
    assert nothing_is_left(served, mark, server)
    assert served.last_line.startswith("=== inference failed: the model server ended: ")
    assert "VLLM_RESTARTS=0 allows no restart" in served.last_line
    assert ".vllm.log" in served.last_line


def test_a_server_that_dies_is_restarted_and_the_run_goes_on(served: Runner) -> None:
    process = served.start()
    driver = served.driver()
    mark, server = mark_of(served), server_of(served)
    assert server.vllm is not None
    server.vllm.signal(signal.SIGKILL)
    until(lambda: "the model server is ready again after " in served.site.log.read_text(), "it is restarted", WAIT_SEC)
    assert "the model server is restarted (1 of VLLM_RESTARTS=3 this hour): " in served.site.log.read_text()
    again = server_of(served)
    assert again.vllm != server.vllm
    assert driver.alive()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=WAIT_SEC) == 143
    assert nothing_is_left(served, mark, again)
    assert not any(member.alive() for member in server.members)


def test_vllms_parent_that_is_killed_ends_all(served: Runner) -> None:
    process = served.start()
    served.driver()
    mark, server = mark_of(served), server_of(served)
    server.serve.signal(signal.SIGKILL)
    assert process.wait(timeout=WAIT_SEC) == 1
    assert nothing_is_left(served, mark, server)


def test_a_driver_that_is_killed_ends_the_server(served: Runner) -> None:
    process = served.start()
    driver = served.driver()
    mark, server = mark_of(served), server_of(served)
    driver.signal(signal.SIGKILL)
    assert process.wait(timeout=WAIT_SEC) == 1
    assert nothing_is_left(served, mark, server)
    assert "the driver ended with status 137" in served.last_line


def test_kill_9_of_the_launcher_ends_server_and_driver(served: Runner) -> None:
    process = served.start()
    served.driver()
    mark, server = mark_of(served), server_of(served)
    process.kill()
    until(lambda: not marked(mark) and not any(member.alive() for member in server.members), "all end", WAIT_SEC)
    assert not server.serve.alive()


def test_a_server_that_does_not_start_is_shown_with_its_reason(served: Runner) -> None:
    served.site.keys["VLLM_ENV"] = "STAND_IN=die"
    failed = served.finish()
    assert failed.returncode == 1
    assert "Free memory on device cuda:0 is less than desired" in failed.stderr
    assert failed.stdout.splitlines()[-1].startswith("=== inference failed: the model server ended: ")
    assert served.records() == []


def test_c22_two_runners_with_one_port(served: Runner) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as other:
        served.site.keys["VLLM_PORT"] = str(other.getsockname()[1])
        refused = served.finish()
    assert refused.returncode in (1, 2)
    assert "VLLM_PORT" in refused.stdout + refused.stderr
    assert served.records() == []


def test_a_signal_while_the_server_starts(served: Runner) -> None:
    served.site.keys["VLLM_ENV"] = "STAND_IN=hang"
    process = served.start()
    until(lambda: any('"vllm": {' in text for text in server_texts(served)), "the server starts")
    mark, server = mark_of(served), server_of(served)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=WAIT_SEC) == 130
    assert nothing_is_left(served, mark, server)


def test_no_key_in_any_command_line_or_file(served: Runner) -> None:
    """Server and gateway have it in their environment, and nobody else."""
    process = served.start()
    driver = served.driver()
    (record,) = served.records()
    name = b"ROLLOUTGEN_MODEL_KEY"
    key = environ_of(server_of(served).serve)[name]
    assert len(key) >= 32
    assert environ_of(gateway_of(served).gateway)[name] == key
    assert name not in environ_of(driver)
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        assert key not in command.read_bytes()
    for file in (*record.folder.iterdir(), served.site.log):
        assert not file.is_file() or key not in file.read_bytes()
    process.terminate()
    process.wait(timeout=WAIT_SEC)


def test_no_secret_of_the_config_in_a_log(served: Runner) -> None:
    served.site.keys["VLLM_EXTRA_ARGS"] = "'--hf-token not-for-a-log'"
    process = served.start()
    served.driver()
    process.terminate()
    process.wait(timeout=WAIT_SEC)
    logs = "".join(log.read_text() for log in served.site.log.parent.glob(f"{served.site.exp}*.log"))
    assert "--hf-token" in logs
    assert "not-for-a-log" not in logs


def test_nothing_owed_starts_no_server(served: Runner) -> None:
    site = served.site
    (site.folder / "tasks" / "long" / "tests" / "test.sh").write_text(f"#!/bin/bash\n{PASSES}\n")
    assert served.finish().returncode == 0
    again = served.finish()
    assert again.returncode == 0, again.stderr
    assert "starting the model server" not in again.stderr
