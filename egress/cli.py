"""The `egress` command: `egress serve` runs a server, `egress bench` puts load on one.

Every option of `egress serve` is a field of `egress.serve.config.Settings`, which knows ranges and
meanings; each may also be given as an environment variable, `EGRESS_SERVE_<OPTION>`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

from egress.errors import EgressError
from egress.serve.config import Settings
from egress.serve.load import Load, run_load
from egress.serve.supervisor import serve

__all__ = ["main"]

_F = TypeVar("_F", bound=Callable[..., Any])
_DEFAULT = Settings()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "EGRESS"})
@click.version_option(package_name="egress-ring", prog_name="egress")
def cli() -> None:
    """Token egress: engines, detokenizer shards, shared-memory rings, HTTP."""


def _pairs(_: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for value in values:
        name, equals, setting = value.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"expected name=value, got {value!r}", param=option)
        pairs[name] = setting
    return pairs


def _option(flag: str, field: str, text: str, **more: Any) -> Callable[[_F], _F]:
    """An option for a field of Settings, with its default."""
    return click.option(flag, field, default=getattr(_DEFAULT, field), show_default=True, help=text, **more)


@cli.command("serve")
@_option("--shards", "shards", "Engine and detokenizer processes.")
@_option("--workers", "workers", "API processes.")
@_option("--host", "host", "Address to listen on.")
@_option("--port", "port", "Port to listen on; 0 takes a free one.")
@_option("--tokenizer", "tokenizer", "Name that an installed package ships, or path to a tokenizer.json.")
@click.option(
    "--skip-tokenizer-init", is_flag=True, help="Token ids in and out, no text; needs --vocab-size."
)
@click.option(
    "--vocab-size", type=int, default=None, help="Ids at or above it are refused. [default: the tokenizer's]"
)
@_option("--engine", "engine", "ngram, replay, or package.module:factory.")
@click.option(
    "--engine-option",
    "engine_options",
    multiple=True,
    metavar="K=V",
    callback=_pairs,
    help="For the engine; may be repeated.",
)
@click.option("--corpus", type=click.Path(exists=True, dir_okay=False), help="Text to build the engine from.")
@_option("--step-ms", "step_ms", "Least milliseconds from step to step; 0 = as fast as it can.")
@click.option("--model-name", default=None, help="What /v1/models lists. [default: egress-ENGINE]")
@_option("--max-context", "max_context", "Tokens of prompt and answer together.")
@_option("--max-running", "max_running", "Requests at once in one shard; one more is answered 503.")
@_option("--max-prompts", "max_prompts", "Prompts in one request body.")
@_option("--max-body", "max_body", "Bytes of a request body; more is answered 413.")
@_option("--ring-bytes", "ring_bytes", "Capacity of every ring, a power of two.")
@_option("--sink-items", "sink_items", "Items that may wait for one slow client.")
@_option("--sink-tokens", "sink_tokens", "Tokens that may wait for one slow client.")
@_option("--stall-s", "stall_s", "Seconds after which a client that does not read is cut off; 0 = never.")
@_option("--backlog-bytes", "backlog_bytes", "Bytes a shard keeps for a worker that takes nothing.")
@click.option("--api-key", default=None, help="Require this bearer token.  [env: EGRESS_SERVE_API_KEY]")
@_option("--drain-s", "drain_s", "Seconds running requests may take to end after SIGTERM.")
@_option("--ping-s", "ping_s", "Seconds between two pings of a child.")
@_option("--hang-s", "hang_s", "Seconds after which a silent child is replaced.")
@_option("--log-format", "log_format", "Of log lines.", type=click.Choice(["text", "json"]))
@_option(
    "--log-level",
    "log_level",
    "Least level to log.",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]),
)
@click.option("--log-requests", is_flag=True, help="One line per ended request.")
def serve_command(corpus: str | None, model_name: str | None, **values: Any) -> None:
    """Run shards, API workers and the rings between them, until Ctrl-C or SIGTERM."""
    if values["skip_tokenizer_init"] and values["vocab_size"] is None:
        raise click.UsageError(
            "--skip-tokenizer-init needs --vocab-size: without a tokenizer nothing else says what the ids are"
        )
    if corpus is not None:
        values["engine_options"]["corpus"] = corpus
    values["model_name"] = model_name or f"egress-{values['engine'].partition(':')[0].rpartition('.')[2]}"
    serve(Settings(**values), click.echo)


_LOAD = Load()


@cli.command("bench")
@click.option("--url", default=_LOAD.url, show_default=True, help="Of a running `egress serve`.")
@click.option("--requests", default=_LOAD.requests, show_default=True, help="Streams in all.")
@click.option("--concurrency", default=_LOAD.concurrency, show_default=True, help="Streams at once.")
@click.option("--max-tokens", default=_LOAD.max_tokens, show_default=True, help="Tokens of each answer.")
@click.option("--prompt", default=_LOAD.prompt, show_default=True, help="Text of each request.")
@click.option("--api-key", default=None, help="Bearer token, where the server wants one.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON instead of text.")
def bench_command(as_json: bool, **values: Any) -> None:
    """Put streams on a running server, check every one, print rates and latencies."""
    report = asyncio.run(run_load(Load(**values)))
    if as_json:
        click.echo(msgspec.json.encode(report))
    else:
        for name, value in msgspec.structs.asdict(report).items():
            shown = (
                "  ".join(f"{k} {v:,}" for k, v in value.items()) if isinstance(value, dict) else f"{value:,}"
            )
            click.echo(f"{name:<16}{shown}")
    if report.failed:
        raise click.exceptions.Exit(1)


def main() -> int:
    """Run the command line; the exit status: 0 done, 1 failed, 2 wrong usage."""
    try:
        # The status of an Exit is what comes back; of a command that ends by itself, None.
        return cli(standalone_mode=False) or 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return 1
    except EgressError as error:
        click.echo(f"egress: {error}", err=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
