from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuplane.backends.interface import Phase
from gpuplane.backends.local.supervisor import plan, records, words
from gpuplane.core.reasons import Word
from gpuplane.core.workloads import RestartPolicy

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_a_record_is_the_json_that_everyone_reads(value: object) -> None:
    text = records.encode(value)
    assert json.loads(text) == value
    assert text.isascii()


def test_a_record_of_something_else_is_refused() -> None:
    with pytest.raises(TypeError, match="object"):
        records.encode(object())


def test_a_record_is_created_once(tmp_path: Path) -> None:
    path = tmp_path / "fate.json"
    assert records.create_once(str(path), {"fate": "start"})
    assert not records.create_once(str(path), {"fate": "never"})
    assert json.loads(path.read_text()) == {"fate": "start"}
    assert list(tmp_path.iterdir()) == [path]


def test_a_record_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    records.write_record(str(path), {"a": "x" * 10_000})
    records.write_record(str(path), {"b": 1})
    assert json.loads(path.read_text()) == {"b": 1}
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_lock_is_seen_by_others_and_ends_with_its_holder(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    assert not records.is_locked(path)
    code = (
        "import sys; from gpuplane.backends.local.supervisor import records\n"
        "assert records.take_lock(sys.argv[1]) is not None\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    source = str(Path(records.__file__).parents[4])
    holder = subprocess.Popen(
        [sys.executable, "-c", code, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": source},
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    assert records.is_locked(path)
    assert records.take_lock(path) is None
    holder.communicate()
    assert not records.is_locked(path)


def test_a_payload_cut_short_is_no_plan(tmp_path: Path) -> None:
    packed = plan.pack({"replicas": []})
    for size in (0, 3, 8, len(packed) - 1):
        file = tmp_path / f"plan-{size}"
        file.write_bytes(packed[:size])
        with file.open("rb") as reader:
            assert plan.read_plan(reader.fileno()) is None


def test_the_words_of_a_supervisor_are_those_of_the_product() -> None:
    phases = {words.STARTING, words.RUNNING, words.STOPPING, words.EXITED, words.LOST}
    policies = {words.RESTART_NEVER, words.RESTART_ON_FAILURE, words.RESTART_ALWAYS}
    every = {value for name, value in vars(words).items() if name.isupper()}
    assert phases <= set(Phase)
    assert policies == set(RestartPolicy)
    assert every - phases - policies - {False} <= set(Word)


def test_a_supervisor_starts_without_heavy_imports() -> None:
    """Each of these would cost a start more than all that a supervisor does."""
    main = Path(records.__file__).with_name("main.py")
    code = (
        f"import sys; code = compile(open({str(main)!r}).read(), {str(main)!r}, 'exec')\n"
        f"exec(code, {{'__name__': 'main', '__file__': {str(main)!r}}})\n"
        "print(*sorted(sys.modules))"
    )
    answer = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(answer.stdout.split())
    heavy = {"json", "re", "typing", "subprocess", "asyncio", "tarfile", "logging", "dataclasses"}
    assert loaded & heavy == set()
    ours = {name for name in loaded if name.startswith("gpuplane")}
    assert {n for n in ours if n.count(".") > 1} == {
        n for n in ours if n.startswith("gpuplane.backends.local")
    }
