"""Using bough's executors in Google's ADK: agents and `SkillToolset` run code in bough's sandboxes.

```python
toolset = SkillToolset(skills, code_executor=BoughCodeExecutor(executor=LocalSandboxCodeExecutor()))
```
Needs `bough[adk]`; in a separate environment, if other packages need newer Google packages than ADK allows.
Source: ADK (`CodeExecutionInput`, `CodeExecutionResult`, `SkillToolset`).
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import base64
import binascii
import mimetypes
from typing import Any

from pydantic import ConfigDict

from bough.errors import Unavailable
from bough.execution import base
from bough.portal import portal

try:
    from google.adk.code_executors import code_execution_utils as adk
    from google.adk.code_executors.base_code_executor import BaseCodeExecutor
except ImportError as error:
    raise Unavailable("google-adk is not installed.", hint="pip install 'bough[adk]'") from error


class BoughCodeExecutor(BaseCodeExecutor):
    """An ADK executor that runs code in one of bough's executors. Call `close` at the end.

    ADK calls it from threads, which wait for bough's event loop. A process has one such loop.

    Attributes:
        executor: bough's executor.
        timeout_seconds: Whole seconds, as in ADK; None for the executor's default.
        limits: The limits of each run.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    executor: Any
    limits: base.ExecutionLimits = base.ExecutionLimits()

    def model_post_init(self, context: Any) -> None:
        """Set `stateful` to that of the executor."""
        super().model_post_init(context)
        self.stateful = self.executor.stateful

    def execute_code(self, invocation_context: Any, code_execution_input: Any) -> Any:
        """Run ADK's request and return ADK's result. Blocks.

        The result of a killed run has a negative exit code, and the reason as the last line of stderr: ADK treats a
        result without an exit code as a success if something was printed.

        Raises:
            BoughError: The request is invalid, or no sandbox works on this machine; nothing was run.
        """
        request = base.CodeExecutionInput(
            code=code_execution_input.code,
            input_files=tuple(
                base.File(path=file.name, content=_decode_content(file.content))
                for file in code_execution_input.input_files
            ),
            execution_id=code_execution_input.execution_id,
            timeout_seconds=self.timeout_seconds,
            limits=self.limits,
        )
        loop = portal()
        loop.hold_weakly(self.executor)
        return _make_adk_result(loop.call(self.executor.execute, request))

    def close(self) -> None:
        """Close the executor. Idempotent. At the end of the program, an open executor is closed automatically."""
        portal().close(self.executor)


def _decode_content(content: str | bytes) -> bytes:
    """Return the bytes of a file, which ADK passes as bytes, as base64 or as plain text."""
    if isinstance(content, bytes):
        return content
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        return content.encode()


def _make_adk_result(result: base.CodeExecutionResult) -> Any:
    """Convert a result of bough to ADK's."""
    stderr = result.stderr.decode(errors="replace")
    if result.exit_code is None:
        stderr += f"\nended by {result.killed_by or f'signal {result.signal}'}"
    return adk.CodeExecutionResult(
        stdout=result.stdout.decode(errors="replace"),
        stderr=stderr.lstrip("\n"),
        output_files=[_make_adk_file(file) for file in result.output_files],
        exit_code=-(result.signal or 9) if result.exit_code is None else result.exit_code,
    )


def _make_adk_file(file: base.File) -> Any:
    mime_type = mimetypes.guess_type(file.path)[0] or "application/octet-stream"
    return adk.File(name=file.path, content=file.content, mime_type=mime_type)
