"""The verbs of the command line. Each is a thin skin over the library, imported when the verb is used."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

import loadgen
from loadgen.errors import LoadgenError, ProfileError

if TYPE_CHECKING:
    from rich.console import Console

    from loadgen.profile import Profile
    from loadgen.profile.overrides import Overrides

app = typer.Typer(
    name="loadgen",
    help="Load a vLLM deployment and measure what its users would feel.",
    no_args_is_help=True,
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
sim = typer.Typer(help="The simulated vLLM.", no_args_is_help=True)
app.add_typer(sim, name="sim")


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.", is_eager=True)] = False,
) -> None:
    """Load a vLLM deployment and measure what its users would feel."""
    if version:
        typer.echo(f"loadgen {loadgen.__version__}")
        raise typer.Exit


ProfileArgument = Annotated[str, typer.Argument(help="A profile's file, or the name of a ready one.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change any key, e.g. load.rate=50. Repeatable.")
]
TargetOption = Annotated[str | None, typer.Option(help="Load the server at this URL.")]
ModelOption = Annotated[str | None, typer.Option(help="The model to ask for.")]
RateOption = Annotated[str | None, typer.Option(help='Requests per second, e.g. 20 or "300/min".')]
DurationOption = Annotated[str | None, typer.Option(help='Length of a stage, e.g. "60s".')]


@app.command()
def run(
    profile: Annotated[str | None, typer.Argument(help="A profile's file, or the name of a ready one.")] = None,
    target: TargetOption = None,
    model: ModelOption = None,
    rate: RateOption = None,
    duration: DurationOption = None,
    out: Annotated[Path | None, typer.Option(help="Put the files into this folder itself.")] = None,
    sets: SetOption = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Go on with the run in this folder, which was killed or interrupted."),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No live view and no table: files and exit code.")
    ] = False,
) -> None:
    """Run a load test and report what was measured.

    Exit codes: 0 fine, 1 an SLO was missed, 2 bad profile or usage, 3 target unreachable or nothing completed, 4 the
    generator was the bottleneck, 130 interrupted.
    """
    from loadgen.cli.interactive import run_interactively

    overrides = _overrides(sets, target, model, rate, duration)
    if resume is not None:
        if profile is not None or out is not None or overrides != _overrides(None):
            _fail(ProfileError("--resume", ["takes no profile and changes nothing: the run goes on as it began"]))
        if not (resume / "profile.toml").exists():
            _fail(ProfileError(str(resume), ["holds no run to go on with"]))
        loaded = _load(str(resume / "profile.toml"), overrides)
        raise typer.Exit(run_interactively(loaded, resume, quiet=quiet, resume=True))
    if profile is None:
        _fail(ProfileError("run", ["needs a profile, or --resume with the folder of a run"]))
    raise typer.Exit(run_interactively(_load(profile, overrides), out, quiet=quiet))


class RouterName(StrEnum):
    """How the router before simulated replicas chooses."""

    ROUND_ROBIN = "round-robin"
    LEAST_LOADED = "least-loaded"
    RANDOM = "random"


@app.command()
def simulate(
    profile: ProfileArgument,
    rate: RateOption = None,
    duration: DurationOption = None,
    replicas: Annotated[int, typer.Option(help="How many simulated engines there are.", min=1)] = 1,
    router: Annotated[RouterName, typer.Option(help="How requests are spread over them.")] = RouterName.ROUND_ROBIN,
    out: Annotated[Path | None, typer.Option(help="Put the files into this folder itself.")] = None,
    sets: SetOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No table: files and exit code.")] = False,
) -> None:
    """Run a load test in virtual time on simulated engines: an hour in seconds, on any machine.

    Exit codes: as those of run.
    """
    from loadgen.cli.interactive import simulate_interactively
    from loadgen.runner.simulate import Fleet

    loaded = _load(profile, _overrides(sets, rate=rate, duration=duration))
    raise typer.Exit(simulate_interactively(loaded, out, Fleet(replicas, router.value), quiet=quiet))


@app.command()
def check(
    profile: ProfileArgument,
    target: TargetOption = None,
    model: ModelOption = None,
    rate: RateOption = None,
    duration: DurationOption = None,
    sets: SetOption = None,
) -> None:
    """Validate a profile; print it as resolved and what would run."""
    from loadgen.cli.check import render_expectation
    from loadgen.profile.file import profile_toml
    from loadgen.runner.expectation import expected
    from loadgen.runner.requirements import faults_here

    loaded = _load(profile, _overrides(sets, target, model, rate, duration))
    faults = faults_here(loaded)
    if faults:
        _fail(LoadgenError("\n".join(f"{profile}: {fault}" for fault in faults)))
    typer.echo(profile_toml(loaded))
    _console().print(render_expectation(expected(loaded)))


@app.command()
def profiles() -> None:
    """List the ready profiles."""
    from loadgen.profile.file import ready_profiles

    ready = ready_profiles()
    width = max(len(profile.name) for profile in ready)
    for profile in ready:
        typer.echo(f"{profile.name:{width}}  {profile.summary}")


@app.command()
def report(
    run_directory: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Write the files, print no table.")] = False,
) -> None:
    """Make the files of a run again from what it left on disk, also where it was killed."""
    from loadgen.report.console import render_summary
    from loadgen.runner.results import regenerate

    try:
        summary = regenerate(run_directory)
    except LoadgenError as error:
        _fail(error)
    if not quiet:
        render_summary(summary, _console())


@sim.command()
def serve(
    port: Annotated[int, typer.Option(help="0: any free port.", min=0, max=65535)] = 8000,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="engine.KEY or faults.KEY, as in a profile's target table."),
    ] = None,
) -> None:
    """Serve the simulated vLLM until interrupted."""
    from loadgen.cli.interactive import serve_simulator

    overrides = _overrides([f"target.{assignment}" for assignment in sets or []])
    profile = _load("poisson", overrides)
    try:
        serve_simulator(profile, host, port)
    except LoadgenError as error:
        _fail(error)


def _load(source: str, overrides: "Overrides") -> "Profile":
    from loadgen.profile.file import load_profile

    try:
        return load_profile(source, overrides)
    except LoadgenError as error:
        _fail(error)


def _overrides(
    sets: list[str] | None,
    target: str | None = None,
    model: str | None = None,
    rate: str | None = None,
    duration: str | None = None,
) -> "Overrides":
    from loadgen.profile.overrides import Overrides

    return Overrides(sets=tuple(sets or ()), target=target, model=model, rate=rate, duration=duration)


def _console() -> "Console":
    from rich.console import Console

    return Console()


def _fail(error: LoadgenError) -> NoReturn:
    typer.echo(str(error), err=True)
    raise typer.Exit(error.exit_code)


def main() -> None:
    """The `loadgen` command."""
    app()


if __name__ == "__main__":
    main()
