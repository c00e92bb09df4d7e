"""The process that answers long questions: reads them from its input, writes answers to its output.

Owns no state between questions and no handle but its pipes: no database, no settings, no secrets
(its environment is made by the parent). It ends with its parent: the end of its input is the end
of the process, also in the middle of an answer.
"""

import os
import pickle
import queue
import resource
import sys
import threading
import traceback
from typing import BinaryIO

from gpuplane.loops.deciding.questions import Question

OUT_OF_MEMORY = 75
"""Exit code when a question or its answer needs more memory than is allowed."""


READY = b"\n"
"""What the child writes before it takes the first question, so that its start is not counted."""


def main() -> None:
    """Answer until the input ends; the argument is the most memory to take, in MiB."""
    limit = int(sys.argv[1]) << 20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever is printed must not garble an answer
    answers.write(READY)
    answers.flush()
    questions: queue.SimpleQueue[Question[object]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, questions), daemon=True).start()
    while True:
        _answer(questions.get(), answers)


def _read(source: BinaryIO, questions: "queue.SimpleQueue[Question[object]]") -> None:
    """Hand on what comes in and end the process with its input.

    A thread of its own, so that the end is seen while an answer is worked out.
    """
    try:
        while True:
            questions.put(pickle.load(source))
    except EOFError:
        os._exit(0)
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except BaseException:  # noqa: BLE001 - a thread that ended in silence would hang the parent
        traceback.print_exc()
        os._exit(1)


def _answer(question: Question[object], answers: BinaryIO) -> None:
    try:
        found: tuple[str, object] = ("answer", question.answer())
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except Exception:  # noqa: BLE001 - handed to the parent, which raises it
        found = ("error", traceback.format_exc())
    try:
        pickle.dump(found, answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except BrokenPipeError:
        os._exit(0)


if __name__ == "__main__":
    main()
