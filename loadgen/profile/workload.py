"""`[workload]`: what each request says."""

from typing import Annotated, Any, Final, Literal

import msgspec

from loadgen.profile.decoding import Positive, Table, TokenCount
from loadgen.profile.kinds import KINDS, KindName, kinds_with


class Fixed(Table, frozen=True, kw_only=True, tag_field="dist", tag="fixed"):
    value: TokenCount


class Uniform(Table, frozen=True, kw_only=True, tag_field="dist", tag="uniform"):
    """Every whole number from `min` to `max`, both included, equally likely."""

    min: TokenCount
    max: TokenCount

    def __post_init__(self) -> None:
        _ordered(self.min, self.max)


class Normal(Table, frozen=True, kw_only=True, tag_field="dist", tag="normal"):
    """Normal of this mean and standard deviation, rounded, then clamped to [min, max]."""

    mean: Annotated[float, msgspec.Meta(gt=0, le=1e7)]
    sd: Annotated[float, msgspec.Meta(ge=0, le=1e7)]
    min: TokenCount = 1
    max: TokenCount | None = None

    def __post_init__(self) -> None:
        _ordered(self.min, self.max)


class Lognormal(Table, frozen=True, kw_only=True, tag_field="dist", tag="lognormal"):
    """Lognormal of this mean and coefficient of variation (before clamping), rounded, then clamped to [min, max]."""

    mean: Annotated[float, msgspec.Meta(gt=0, le=1e7)]
    cv: Annotated[float, msgspec.Meta(ge=0, le=100)]
    min: TokenCount = 1
    max: TokenCount | None = None

    def __post_init__(self) -> None:
        _ordered(self.min, self.max)


class Choice(Table, frozen=True, kw_only=True, tag_field="dist", tag="choice"):
    """One of `values`, equally likely or by `weights`."""

    values: Annotated[tuple[TokenCount, ...], msgspec.Meta(min_length=1)]
    weights: tuple[Annotated[float, msgspec.Meta(ge=0)], ...] | None = None

    def __post_init__(self) -> None:
        _weighted(self.weights, len(self.values), "values")


class Histogram(Table, frozen=True, kw_only=True, tag_field="dist", tag="histogram"):
    """Uniform within the bin [edges[i], edges[i+1]) that is chosen with weight `weights[i]`."""

    edges: Annotated[tuple[TokenCount, ...], msgspec.Meta(min_length=2)]
    weights: tuple[Annotated[float, msgspec.Meta(ge=0)], ...]

    def __post_init__(self) -> None:
        if any(high <= low for low, high in zip(self.edges, self.edges[1:], strict=False)):
            raise ValueError("edges must increase")
        _weighted(self.weights, len(self.edges) - 1, "bins")


Lengths = TokenCount | Fixed | Uniform | Normal | Lognormal | Choice | Histogram


def _ordered(low: int, high: int | None) -> None:
    if high is not None and high < low:
        raise ValueError(f"max = {high} is below min = {low}")


def _weighted(weights: tuple[float, ...] | None, count: int, what: str) -> None:
    if weights is None:
        return
    if len(weights) != count:
        raise ValueError(f"{len(weights)} weights for {count} {what}")
    if sum(weights) <= 0:
        raise ValueError("weights must not all be 0")


class Images(Table, frozen=True, kw_only=True):
    """Random images, JPEG, different in every request."""

    count: Positive = 1
    width: Annotated[int, msgspec.Meta(ge=8, le=8192)] = 512
    height: Annotated[int, msgspec.Meta(ge=8, le=8192)] = 512


class Audio(Table, frozen=True, kw_only=True):
    """Random sound, WAV of one channel and 16 bits, different in every request."""

    count: Positive = 1
    seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 5.0
    sample_rate: Annotated[int, msgspec.Meta(ge=1000, le=192_000)] = 16_000


_BREAKS_CHOICE: Final = ("ignore_eos", "min_tokens")


class Dataset(Table, frozen=True, kw_only=True):
    """A file of JSON lines, one request a line (`workload.dataset.Row`)."""

    path: Annotated[str, msgspec.Meta(min_length=1)]
    """`load_profile` makes it absolute: each worker reads the file itself."""
    order: Literal["sequential", "shuffle"] = "sequential"
    """`shuffle`: in an order that is drawn once, by `workload.seed`. After the last row the first comes again."""


class Workload(Table, frozen=True, kw_only=True):
    """What each request says: a pure function of (seed, nonce, index)."""

    kind: KindName = "chat"
    """What is asked of the server, and so which of its endpoints is."""
    source: Literal["synthetic", "dataset"] = "synthetic"
    dataset: Dataset | None = None
    """The file that requests come from, for `source = "dataset"`; then `prompt_tokens`, `nonce` and `cache_bust` have
    no meaning."""
    prompt_tokens: Lengths | None = 256
    """Where there are several `inputs`: of each, and of a query. `"none"`: images or sounds without a text; sounds to
    transcribe have none anyway."""
    output_tokens: Lengths | None = 64
    """Asked for with `max_tokens`, `min_tokens` and `ignore_eos`; `"none"` lets the model end by itself. For `score`:
    the length of the completion, which follows the prompt; for `messages`: a maximum. Other kinds do not use it."""
    prompt_format: Literal["text", "tokens"] = "text"
    """`tokens`: prompts of token ids, exact in length, for `completion`, `embed` and `score`, which has no other."""
    labels: tuple[str, ...] = ()
    """For `kind = "choice"`: the answers allowed."""
    inputs: Positive = 1
    """For `embed` and `pooling`: texts in a request; for `rerank`: documents."""
    dimensions: Positive | None = None
    """For `kind = "embed"`: the length of a vector that is asked for; absent: the model's own."""
    system: str | None = None
    """A system message, the same before every chat; it comes on top of `prompt_tokens`."""
    images: Images | None = None
    audio: Audio | None = None
    """What each chat carries beside its text; it comes on top of `prompt_tokens`."""
    seed: Annotated[int, msgspec.Meta(ge=0)] = 1
    nonce: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Drawn afresh for each run where absent, so that no earlier run has warmed a prefix cache."""
    cache_bust: bool = True
    """False: nonce 0, the same prompts in every run."""
    tokenizer: str | None = None
    """A `tokenizer.json` or a folder that holds one (extra `tokenizers`); otherwise the server is asked."""
    body: dict[str, Any] = msgspec.field(default_factory=dict)
    """Fields put into each request's body as they are."""

    def __post_init__(self) -> None:
        kind = KINDS[self.kind]
        if self.prompt_format == "tokens" and not kind.token_ids:
            raise ValueError(f'prompt_format = "tokens" needs kind = {_either("token_ids")}')
        for name, has in (("system", "conversation"), ("images", "images"), ("audio", "audio")):
            if getattr(self, name) is not None and not getattr(kind, has):
                raise ValueError(f"{name} needs kind = {_either(has)}")
        if not kind.streamed and self.body.get("stream"):
            raise ValueError(f'body.stream: a request of kind = "{self.kind}" has a whole answer')
        if self.prompt_tokens is None and self.images is None and self.audio is None:
            raise ValueError(
                'prompt_tokens = "none" needs images or audio: without a text there would be nothing to say'
            )
        self._check_source()
        if self.kind == "score":
            self._check_score()
        self._check_choice()
        if self.kind == "messages" and self.output_tokens is None:
            raise ValueError('kind = "messages" needs output_tokens: its API has no answer without a maximum')
        if self.kind == "transcribe" and (self.audio is None or self.audio.count != 1):
            raise ValueError('kind = "transcribe" needs audio, one sound a request')
        if not kind.several_inputs and self.inputs != 1:
            raise ValueError(f"inputs needs kind = {_either('several_inputs')}")
        if self.kind != "embed" and self.dimensions is not None:
            raise ValueError('dimensions needs kind = "embed"')

    def _check_source(self) -> None:
        if self.dataset is None:
            if self.source == "dataset":
                raise ValueError('source = "dataset" needs [workload.dataset], with the path of a file')
            return
        if self.source != "dataset":
            raise ValueError('dataset needs source = "dataset"')
        if not KINDS[self.kind].from_dataset:
            raise ValueError(f"dataset needs kind = {_either('from_dataset')}")
        if self.prompt_format != "text" or self.images is not None or self.audio is not None or self.inputs != 1:
            raise ValueError(
                "dataset: its rows are texts: prompt_format, images, audio and inputs have no place beside it"
            )

    def _check_score(self) -> None:
        if self.prompt_format != "tokens":
            raise ValueError('kind = "score" needs prompt_format = "tokens": where the completion begins is then exact')
        if self.output_tokens is None:
            raise ValueError('kind = "score" needs output_tokens, the length of the completion that is scored')

    def _check_choice(self) -> None:
        if self.kind != "choice":
            if self.labels:
                raise ValueError('labels need kind = "choice"')
            return
        # The rows of a dataset may each have their own.
        if not are_labels(self.labels) and (self.labels or self.dataset is None):
            raise ValueError('kind = "choice" needs labels, at least two, different and not empty')
        for name in _BREAKS_CHOICE:
            if self.body.get(name):
                raise ValueError(f"body.{name}: something would follow the label")


def are_labels(labels: tuple[str, ...]) -> bool:
    """Whether these can be the labels of a choice: at least two, that differ by more than space, and none is empty."""
    bare = {label.strip() for label in labels}
    return len(bare) == len(labels) >= 2 and "" not in bare


def _either(what: str) -> str:
    """The kinds that have it, such as `token_ids`, in words."""
    return " or ".join(f'"{kind}"' for kind in kinds_with(what))
