"""`SignatureRunner`: runs one named entry point of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.tflite.interpreter import Interpreter


class SignatureRunner:
    """Runs one signature by its own names; made by `Interpreter.get_signature_runner`.

    While a runner lives, `invoke`, `allocate_tensors` and `resize_tensor_input` of its interpreter
    raise RuntimeError, as LiteRT's do: both would use the same memory. Raises `ValueError` without
    an interpreter, without a key, and for a key that the model does not have.
    """

    def __init__(
        self, interpreter: Interpreter | None = None, signature_key: str | None = None
    ) -> None:
        if not interpreter:
            raise ValueError("None interpreter provided.")
        if not signature_key:
            raise ValueError("None signature_key provided.")
        core = interpreter._core  # noqa: SLF001  # the one friend of the interpreter
        signatures = core.signatures()
        if signature_key not in signatures:
            raise ValueError(f'Invalid signature_key provided: "{signature_key}".')
        self._interpreter, self._core = interpreter, core
        self._signature_key = signature_key
        self._signature_def = signatures[signature_key]
        self._inputs: dict[str, int] = self._signature_def["inputs"]
        self._outputs = self._signature_def["outputs"].items()
        self._subgraph_index = core.session.catalog.signatures[signature_key].subgraph
        core.guests.add(self)

    def __call__(self, **kwargs: Any) -> dict[str, Any]:
        """Resizes the inputs to the arrays given by name, allocates, runs, and returns name ->
        array (copies).

        Raises `ValueError` for a wrong number of inputs, an unknown name, a wrong type;
        `RuntimeError` where the model cannot take the shapes or a run fails.
        """
        if len(kwargs) != len(self._inputs):
            raise ValueError(
                "Invalid number of inputs provided for running a SignatureDef, "
                f"expected {len(self._inputs)} vs provided {len(kwargs)}"
            )
        return self._core.run_signature(self._signature_key, kwargs)

    def get_input_details(self) -> dict[str, dict[str, Any]]:
        """Name -> details dictionary of each input, as `Interpreter.get_input_details` has them."""
        return {
            name: self._core.details(index, self._subgraph_index)
            for name, index in self._inputs.items()
        }

    def get_output_details(self) -> dict[str, dict[str, Any]]:
        """Name -> details dictionary of each output."""
        return {
            name: self._core.details(index, self._subgraph_index) for name, index in self._outputs
        }
