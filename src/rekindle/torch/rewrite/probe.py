"""Proves that the slices of an op give the same bits as the whole op: for its shapes, its cut, the slices, and the device.

Kernels choose by shape how they compute, so a slice may differ from the whole in the last place. The op runs whole and in
slices on random arguments, where its device is at hand; else, and first of all for steps that are planned without tensors, a
table of earlier measurements counts.

Answers are kept in this process and on disk, so that an op is probed once per machine and torch version: one JSON file per
environment under the folder of `model.cache_folder`:

    {"format": "rekindle.bits/1", "environment": "…", "same": {question: true or false}}

A damaged or foreign file counts as empty, and an entry that is no bool as missing. If the folder cannot be written to, nothing
is stored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ...errors import FormatError
from ...model.cache_folder import KeyedFile
from ...model.files import read_own
from ...model.formats import parse_json
from ..costs.cache import FILE_MOST_BYTES, LOCK_WAIT_S
from ..costs.cache import environment as environment_of_costs
from ..costs.made_up import at_hand, undisturbed
from ..costs.operator_calls import OperatorCall, call_of
from ..operators.cut_call import Call, Slicing, broadcast
from ..operators.memory_order import elements_spanned
from ..operators.node_tensors import is_view
from ..operators.record import BY_ELEMENT, BY_ROW, EVERYWHERE, ON_CPU
from ..operators.rules import UNWRITTEN
from ..operators.table import record_of, rule_of
from ..private import OpOverload
from ..tensors import precision
from ..tensors.op_tensors import tensors_in
from .cuts import SUM, Cut
from .random_arguments import random_tensors
from .slice_runs import LAYOUTS_MOST, edges_of, same_bits

log = logging.getLogger(__name__)

FORMAT = "rekindle.bits/1"
PROBE_VERSION = 4  # raise it whenever ops are probed in another way: older answers are then not used
_SESSION: dict[str, dict[str, bool]] = {}  # environment -> the answers that this process has read or found


@dataclass(frozen=True)
class ProbeSettings:
    """Limits of the probe; an op beyond them counts as not the same. All are guesses.

    most_bytes : of the arguments and results of an op that is run on a CPU.
    call_most_s, all_most_s : seconds of one probe and of all probes of one `Bits`, by the op's roofline, so that the same
        questions get the same answers.
    runs : how often an op runs, each time on other random arguments, after the first on ones that show the order of sums in
        sixteen bits.
    large_bytes : an op of so many bytes in float32 or float64 runs once, and some of its slices: where sums were taken in
        another order, more than half of all numbers differed. In fewer bits most sums of usual numbers round alike.
    """

    most_bytes: int = 2**31
    call_most_s: float = 5.0
    all_most_s: float = 10.0
    runs: int = 3
    large_bytes: int = 2**26


SETTINGS = ProbeSettings()
FREE_MOST_SHARE = 0.5  # of a GPU's free memory: arguments and results of an op that is run on it. A guess


class Bits:
    """Answers whether ops may run in slices and keep their bits. Answers are remembered; `save` stores them on disk.

    run : False: nothing runs, and the table of known ops counts, as it does for devices that are not at hand.
    table : the table counts where it gives an answer, and only ops of which it says that a run alone tells are run: for steps
        whose tensors take no memory, which are planned before there is a model.
    """

    def __init__(self, run: bool = True, table: bool = False):
        self.run, self.table = run, table
        self._given: dict[str, bool] = {}
        self._remembered: dict[str, Answers] = {}  # by environment
        self._spent_s = 0.0

    def same(self, node: fx.Node, cut: Cut, slices: int, size: int = 0) -> bool:
        """Whether each slice of the op gives the same bits as the same part of the whole op.

        size : units of the region of which the op is a part, as `region.units` counts them; 0: all of the cut's. Slices of
            unlike sizes begin where the region's do.
        """
        return SUM not in cut.outs and self.same_beside_sums(node, cut, slices, size)

    def same_beside_sums(self, node: fx.Node, cut: Cut, slices: int, size: int) -> bool:
        """`same`, of the results that are not added up."""
        if all(d == SUM for d in cut.outs):
            return True
        edges = edges_of(slices, size or cut.units)
        if slices > edges[-1] or cut.units % edges[-1]:
            return False
        if by_construction(node):
            return True
        call = call_of(node, None)
        runs = call is not None and self.run and at_hand(call.device)
        said = None if runs and not self.table else known(node, cut, edges)
        if said is not None or call is None or not runs:
            return bool(said)
        if call.key is None or (call.device.type == "cpu" and not can_be_probed(node, cut, edges)):
            return False
        key = _key(call, cut, edges)
        if key not in self._given:
            self._given[key] = self._probed(key, node, cut, edges, call)
        return self._given[key]

    def save(self) -> None:
        """Store new answers on disk, for later processes."""
        for answers in self._remembered.values():
            answers.save()

    def _quick(self, call: OperatorCall, runs: int) -> bool:
        """Whether a probe keeps to the limits of time. Remembered answers count too, so that later processes answer alike."""
        seconds = call.roofline * runs * (2 + (LAYOUTS_MOST / 2 if runs > 1 else 0))
        if seconds > SETTINGS.call_most_s:
            return False
        self._spent_s += seconds
        return self._spent_s <= SETTINGS.all_most_s

    def _probed(self, key: str, node: fx.Node, cut: Cut, edges: Sequence[int], call: OperatorCall) -> bool:
        """The answer as it is remembered, or found now if there is memory and time for it. An op that fails has none to
        remember: memory may have been short."""
        size = _bytes(node, call)
        large = size >= SETTINGS.large_bytes and _many_bits(node, call)
        if not self._quick(call, 1 if large else SETTINGS.runs):
            return False
        here = environment(call.device)
        if here not in self._remembered:
            self._remembered[here] = Answers(here)
        answers = self._remembered[here]
        same = answers.get(key)
        if same is None and size > _room(call.device):
            return False
        if same is None:
            seeds = range(1 if large else SETTINGS.runs)
            try:
                same = True
                for way in _ways(call.device):
                    with way():
                        same = same and all(probed(node, cut, edges, s, large, bool(s)) for s in seeds)
            except Exception as e:
                log.debug("%s in slices %s: %s", node.target, cut, e)
                return False
            answers.put(key, same)
        return same


def _ways(device: torch.device) -> list[Callable[[], AbstractContextManager[None]]]:
    """The settings under which an op must have the same bits: those at hand, and on a GPU, whose kernels depend on it, with
    deterministic algorithms too, under which `verify` compares steps."""
    also = device.type == "cuda" and not torch.are_deterministic_algorithms_enabled()
    return [nullcontext, precision.deterministic] if also else [nullcontext]


def probed(node: fx.Node, cut: Cut, edges: Sequence[int], seed: int, some: bool = False, cancel: bool = False) -> bool:
    """Whether slices of the op, between these units, have the bits of the whole, in one run on random arguments.

    some : of slices of equal size only the first two and the last run. cancel : on numbers that show the order of sums in
        sixteen bits.

    Raises
    ------
    Exception : what the op raises.
    """
    call = call_of(node, None)
    with undisturbed([] if call is None else [call]):
        torch.manual_seed(seed)
        return same_bits(node, cut, edges, random_tensors(node, cancel), some)


def _key(call: OperatorCall, cut: Cut, edges: Sequence[int]) -> str:
    """The question as text. Costs do not depend on the fractions among the arguments; bits do."""
    fractions = [repr(x) for x in [*call.args, *call.kwargs.values()] if isinstance(x, float)]
    begins = [e * (cut.units // edges[-1]) for e in edges]
    return f"{call.key} {' '.join(fractions)} ins {cut.ins} outs {cut.outs} begins {begins}"


def _bytes(node: fx.Node, call: OperatorCall) -> int:
    """Bytes of the op's arguments and of its results, which are there two times at most."""
    ins = {id(t): t for t in tensors_in((call.args, call.kwargs))}.values()
    outs = tensors_in(node.meta["val"])
    return sum(elements_spanned(t) * t.element_size() for t in [*ins, *outs])


def _many_bits(node: fx.Node, call: OperatorCall) -> bool:
    """Whether the op computes in float32 or float64 throughout."""
    tensors = [*tensors_in((call.args, call.kwargs)), *tensors_in(node.meta["val"])]
    return all(t.dtype in (torch.float32, torch.float64) for t in tensors if t.dtype.is_floating_point)


def _room(device: torch.device) -> float:
    if device.type != "cuda":
        return SETTINGS.most_bytes
    return torch.cuda.mem_get_info(device)[0] * FREE_MOST_SHARE


# -- answers without a run ---------------------------------------------------------------------------------------------
# By construction, or as measured before. `Operator.exact` says which are by construction. `Operator.same_bits` was measured on
# a CPU (float32, AVX-512, one and two threads, 2 to 8 slices), and counts where nothing can run, and for steps that are planned
# without tensors: there all figures are modelled.
_THREADS = 64  # for machines that are not known
_ONE_MORE = "alpha"  # a factor in an addition: some kernels round the product, and others do not


def by_construction(node: fx.Node) -> bool:
    """Whether slices of the op, whichever cut it is, have the bits of the whole because of the way in which it computes.

    A NaN is a NaN in both; which of the NaNs it is may differ."""
    if is_view(node) or getattr(node.target, "overloadpacket", None) in UNWRITTEN:
        return True
    if not isinstance(node.target, OpOverload):
        return False
    call = Call(node)
    results = [t for t in call.results if t is not None]
    if (
        any(t.dtype.is_complex for t in results)
        or call.values.get(_ONE_MORE, 1) != 1
        or call.values.get("rounding_mode")
    ):
        return False
    exact = record_of(call.name).exact
    return exact == EVERYWHERE or exact == ON_CPU and all(t.device.type == "cpu" for t in results)


def known(node: fx.Node, cut: Cut, edges: Sequence[int]) -> bool | None:
    """Whether the table says that slices of the op have the bits of the whole; of ops that are not in it, they have not. None:
    it depends on the op's shapes and on the machine, so that a run alone tells."""
    q = Slicing(node, cut, edges)
    rule = record_of(q.call.name).same_bits
    if rule is not None:
        return rule(q)
    return rule_of(node.target) is broadcast and q.in_whole_vectors(_THREADS)


def can_be_probed(node: fx.Node, cut: Cut, edges: Sequence[int]) -> bool:
    """Whether a run on a CPU tells more than chance.

    Where elements that lie in whole vectors in the whole are left over in a slice, those few alone are computed in another way,
    and for many random numbers both ways give the same bits.
    """
    q = Slicing(node, cut, edges)
    vectors = record_of(q.call.name).vectors
    if rule_of(node.target) is broadcast or vectors == BY_ELEMENT:
        return q.in_whole_vectors(torch.get_num_threads())
    if vectors == BY_ROW:
        first = min(q.call.dims())
        return q.contiguous() and all(d is None or d < first for d in cut.ins)
    return True


# -- remembered answers -----------------------------------------------------------------------------------------------
class Answers(KeyedFile[bool]):
    """Question -> whether the bits are the same, for one environment. Reading and writing never raise."""

    def __init__(self, environment: str):
        super().__init__("bits", "answers about the bits of slices", environment, LOCK_WAIT_S)
        read, self._known = self._known, _SESSION.setdefault(environment, {})
        self._known |= read

    def _document(self, entries: Mapping[str, bool]) -> dict[str, Any]:
        return {"format": FORMAT, "environment": self.environment, "same": dict(entries)}

    def _read(self) -> dict[str, bool]:
        """The valid entries of the file."""
        if self.path is None:
            return {}
        try:
            doc = parse_json(read_own(self.path, FILE_MOST_BYTES), str(self.path))
        except (OSError, FormatError) as e:
            log.debug("cache of the bits of slices passed over: %s", e)
            return {}
        fits = isinstance(doc, dict) and doc.get("format") == FORMAT and doc.get("environment") == self.environment
        same = doc.get("same") if fits else None
        return {k: x for k, x in same.items() if isinstance(x, bool)} if isinstance(same, dict) else {}


def environment(device: torch.device) -> str:
    """The versions, device, threads and numeric flags on which the bits of every operator depend, as text."""
    return (
        f"{environment_of_costs(device)}; bits {PROBE_VERSION}; products {precision.of_products()}; "
        f"mkldnn {getattr(torch.backends.mkldnn, 'enabled', None)}"
    )
