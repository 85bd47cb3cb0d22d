"""Steps for the next GPU are run once, in order, and one that fails does not stop the others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools.benchmarks.gpu import Plan, Record, Step, main, read_records, run_steps, summary


def step_that_writes(file: Path, text: str, name: str | None = None, **how) -> Step:
    program = f"open({str(file)!r}, 'a').write({text!r}); print('wrote', {text!r})"
    return Step(name or f"step {text}", ("-c", program), **{"limit": 20.0} | how)


def run(steps, file, seconds=60.0, **how):
    return run_steps(steps, file, "cpu", seconds, **how)


def test_a_second_call_runs_only_what_is_missing(tmp_path, capsys):
    log, file = tmp_path / "log", tmp_path / "gpu.jsonl"
    first, second = (step_that_writes(log, text) for text in "ab")
    assert run([first], file)
    assert log.read_text() == "a"
    assert run([first, second], file)
    assert log.read_text() == "ab"
    assert "step a: passed before" in capsys.readouterr().out
    records = read_records(file)
    assert [record.step for record in records.values()] == ["step a", "step b"]
    record = records[first.name, first.arguments]
    assert (record.outcome, record.error, record.output) == ("passed", "", "wrote a\n")
    # The same step with other arguments is another one.
    assert run([step_that_writes(log, "c", name="step a")], file)
    assert log.read_text() == "abc"


def test_a_step_that_fails_is_recorded_and_repeated_only_on_request(tmp_path):
    log, file = tmp_path / "log", tmp_path / "gpu.jsonl"
    program = f"open({str(log)!r}, 'a').write('x'); print('before'); raise ValueError('no memory')"
    fails, next_one = Step("fails", ("-c", program), 20), step_that_writes(log, "b")
    assert run([fails, next_one], file)
    assert log.read_text() == "xb"
    record = read_records(file)[fails.name, fails.arguments]
    assert (record.outcome, record.error) == ("failed", "ValueError: no memory")
    assert "before" in record.output
    run([fails, next_one], file)
    assert log.read_text() == "xb"
    run([fails, next_one], file, retry=True)
    assert log.read_text() == "xbx"
    assert len(file.read_text().splitlines()) == 3
    assert len(read_records(file)) == 2


@pytest.mark.slow
def test_a_step_ends_at_its_limit_with_all_that_it_started(tmp_path):
    file, pid = tmp_path / "gpu.jsonl", tmp_path / "pid"
    program = (
        "import subprocess, sys, time, pathlib; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
        f"pathlib.Path({str(pid)!r}).write_text(str(child.pid)); print('waits', flush=True); "
        "time.sleep(60)"
    )
    assert run([Step("waits", ("-c", program), limit=5)], file)
    (record,) = read_records(file).values()
    assert record.outcome == "out of time"
    assert record.error == "It did not end within 5 s. The last it wrote: waits"
    assert record.seconds < 50
    assert has_ended(int(pid.read_text()))


def has_ended(pid: int) -> bool:
    """Whether a process ends within seconds; it may stay in the table until its parent reads it."""
    status = Path(f"/proc/{pid}/stat")
    for _ in range(100):
        if not status.exists() or status.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return True
        time.sleep(0.1)
    return False


def test_no_step_is_begun_that_might_not_end_in_time(tmp_path, capsys):
    log, file = tmp_path / "log", tmp_path / "gpu.jsonl"
    steps = [step_that_writes(log, text, limit=50) for text in "ab"]
    # The first one is begun in any case, so that every call gets further.
    assert not run(steps, file, seconds=40)
    assert log.read_text() == "a"
    assert "step b: may take 50 s, " in capsys.readouterr().out
    assert run(steps, file, seconds=40)
    assert log.read_text() == "ab"


def test_a_step_that_cannot_be_run_here_is_tried_again(tmp_path):
    log, file = tmp_path / "log", tmp_path / "gpu.jsonl"
    assert run([step_that_writes(log, "a", reason_left_out="There is only 1 GPU.")], file)
    assert not log.exists()
    (record,) = read_records(file).values()
    assert (record.outcome, record.error) == ("left out", "There is only 1 GPU.")
    assert run([step_that_writes(log, "a")], file)
    assert log.read_text() == "a"


def test_a_line_that_was_cut_off_does_not_count(tmp_path):
    log, file = tmp_path / "log", tmp_path / "gpu.jsonl"
    steps = [step_that_writes(log, text) for text in "ab"]
    run(steps, file)
    file.write_text(file.read_text()[:-20])
    assert [record.step for record in read_records(file).values()] == ["step a"]
    run(steps, file)
    assert log.read_text() == "abb"
    assert [record.step for record in read_records(file).values()] == ["step a", "step b"]


@pytest.mark.slow
def test_a_call_that_is_ended_leaves_no_record_and_no_process(tmp_path):
    file, pid = tmp_path / "gpu.jsonl", tmp_path / "pid"
    waits = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    program = (
        "import signal; from pathlib import Path; from tools.benchmarks import gpu; "
        "signal.signal(signal.SIGTERM, signal.default_int_handler); "
        f"gpu.run_steps([gpu.Step('waits', ('-c', {waits!r}))], Path({str(file)!r}), 'cpu', 60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    for _ in range(300):
        if pid.exists() and pid.read_text():
            break
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(30) != 0
    assert not file.exists()
    assert has_ended(int(pid.read_text()))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("quick", [False, True])
def test_steps_have_names_of_their_own_and_fit_into_ten_minutes(device, quick):
    steps = list(Plan(device, quick).steps())
    assert len({step.name for step in steps}) == len(steps)
    assert all(step.limit <= 540 for step in steps)
    order = [step.name.split()[0] for step in steps]
    assert list(dict.fromkeys(order)) == [
        name
        for name in ("tests", "other", "evaluation", "sparse", "learned", "edges", "peers")
        if name != "other" or device == "cuda"
    ] + ["figures", "several"]


def test_a_quick_call_has_room_for_several_steps():
    *others, last = Plan("cpu", quick=True).steps()
    assert last.name == "several GPUs"
    assert all(step.limit <= 240 for step in others)
    assert last.limit == 540


def test_three_evaluations_are_counted():
    records = [
        Record(f"evaluation {n}", ("--most-forwards", "1.3"), outcome, "", 1.0, "", "a GPU")
        for n, outcome in enumerate(("passed", "failed", "passed"))
    ]
    *_, last = summary(records)
    assert last == "evaluations in at most 1.3 forward passes: 2 of 3 runs"


def test_without_a_gpu_the_command_says_what_to_do(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(Exception, match="There is no GPU here. Use --device cpu --quick to try"):
        main(device="cuda")


def test_records_are_lines_of_json(tmp_path):
    file = tmp_path / "gpu.jsonl"
    run([step_that_writes(tmp_path / "log", "a")], file)
    (line,) = file.read_text().splitlines()
    values = json.loads(line)
    assert values["device"] == "cpu"
    assert values["seconds"] > 0
