"""A small load generator for several servers at once: tokens, seconds and accept length of each pass, interleaved.

`sglang.bench_serving` measures one server; comparing servers that stand side by side needs turns of a second or so,
one after the other, so that what the machine does meanwhile falls on all of them alike.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Sequence
from typing import Any

from record import ADDRESS


def generate(port: int, prompt: str, tokens: int, timeout: float = 60.0) -> dict[str, Any]:
    """One greedy answer of exactly ``tokens`` tokens: its meta_info, with ``seconds``."""
    body = {
        "text": prompt,
        "sampling_params": {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True},
    }
    connection = http.client.HTTPConnection(ADDRESS, port, timeout=timeout)
    try:
        began = time.monotonic()
        connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        seconds = time.monotonic() - began
    finally:
        connection.close()
    if answer.status != 200:
        raise OSError(f"port {port}: HTTP {answer.status}: {text[:200]!r}")
    return {**json.loads(text)["meta_info"], "seconds": seconds}


def burst(port: int, prompts: Sequence[tuple[int, str]], batch: int, tokens: int) -> dict[str, Any]:
    """Every prompt once, ``batch`` at a time: tokens a second, accept length served, verifies.

    prompts: each with its number, by which servers are compared.
    """
    answers: list[dict[str, Any]] = []
    failures: list[str] = []
    waiting = list(prompts)
    lock = threading.Lock()

    def client() -> None:
        while True:
            with lock:
                if not waiting:
                    return
                number, prompt = waiting.pop()
            try:
                answer = generate(port, prompt, tokens)
            except OSError as error:
                failures.append(str(error))
                return
            answers.append({**answer, "prompt": number})

    threads = [threading.Thread(target=client) for _ in range(min(batch, len(prompts)))]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - began
    return summary(answers, failures, seconds, batch)


def summary(answers: list[dict[str, Any]], failures: list[str], seconds: float, batch: int) -> dict[str, Any]:
    """Figures of one burst. ``accept_length``: tokens gained a verify, without the token that prefill gives."""
    gained = sum(one["completion_tokens"] - 1 for one in answers)
    verifies = sum(one.get("spec_verify_ct", 0) for one in answers)
    made = sum(one["completion_tokens"] for one in answers)
    return {
        "batch": batch,
        "requests": len(answers),
        "tokens": made,
        "seconds": round(seconds, 4),
        "tok_s": round(made / seconds, 2) if seconds else None,
        "verifies": verifies,
        "gained": gained,
        "accept_length": round(gained / verifies, 4) if verifies else None,
        "histograms": _sum(
            [one["spec_correct_drafts_histogram"] for one in answers if one.get("spec_verify_ct")]
        ),
        "failures": failures,
        "rows": [_row(one) for one in answers],
    }


def _row(answer: dict[str, Any]) -> dict[str, Any]:
    """One request as `tune` counts them. The server's own clock says when the first token was there."""
    begun, first = answer.get("request_received_ts"), answer.get("prefill_finished_time")
    return {
        "prompt": answer.get("prompt", 0),
        "tokens": answer["completion_tokens"],
        "seconds": round(answer.get("seconds", 0.0), 5),
        "ttft": round(max(first - begun, 0.0), 5) if begun and first else 0.0,
        "histogram": answer.get("spec_correct_drafts_histogram") or [],
    }


def _sum(rows: list[list[int]]) -> list[int]:
    width = max((len(row) for row in rows), default=0)
    return [sum(row[i] for row in rows if i < len(row)) for i in range(width)]


def interleaved(
    ports: dict[str, int],
    prompts: Sequence[str],
    batches: Sequence[int],
    *,
    passes: int,
    tokens: int,
    until: float,
    first: int = 0,
) -> list[dict[str, Any]]:
    """``passes`` rounds over all servers and batch sizes, the order of servers drawn anew each round, numbered from
    ``first``.

    A turn at batch 1 is one request, at others two for each that runs at a time, with the next prompts each round:
    short and many, since a server was seen to run for seconds at two thirds of its speed, whatever it was asked. The
    cycles of two requests after each other went together (0.77), those of two rounds did not.

    until: time (monotonic) after which no further round is begun. Each entry has ``server`` and ``round``.
    """
    order = random.Random(first)
    found = []
    numbered = list(enumerate(prompts))
    # Not counted: the first turn at batch 32 was seen at half the speed of the others.
    for name in ports:
        burst(ports[name], (numbered * max(batches))[: max(batches)], max(batches), tokens)
    for number in range(first, first + passes):
        began = time.monotonic()
        for batch in batches:
            names = list(ports)
            order.shuffle(names)
            turn = 1 if batch == 1 else 2 * batch
            asked = [numbered[(turn * number + i) % len(numbered)] for i in range(turn)]
            for name in names:
                found.append(
                    {
                        "server": name,
                        "round": number,
                        **burst(ports[name], asked, batch, tokens),
                    }
                )
        if time.monotonic() + (time.monotonic() - began) > until:
            break
    return found


def compare(
    entries: list[dict[str, Any]], one: str, other: str, batch: int, seed: int = 0
) -> dict[str, Any] | None:
    """Ratio of the throughputs of two servers at a batch size, paired by round, with a 95 % bootstrap interval."""
    rounds = sorted({entry["round"] for entry in entries})
    pairs = []
    for number in rounds:
        found = {
            entry["server"]: entry["tok_s"]
            for entry in entries
            if entry["round"] == number
            and entry["batch"] == batch
            and entry["tok_s"]
            and not entry["failures"]
        }
        if one in found and other in found:
            pairs.append((found[one], found[other]))
    if not pairs:
        return None
    rng = random.Random(seed)
    drawn = []
    for _ in range(2000):
        again = [rng.choice(pairs) for _ in pairs]
        drawn.append(sum(a for a, _ in again) / sum(b for _, b in again))
    drawn.sort()
    ratio = sum(a for a, _ in pairs) / sum(b for _, b in pairs)
    return {
        "ratio": round(ratio, 4),
        "interval": [round(drawn[49], 4), round(drawn[1949], 4)],
        "rounds": len(pairs),
    }


def rates(entries: list[dict[str, Any]], server: str, batch: int) -> dict[str, Any] | None:
    """Median, least and greatest tok/s of a server at a batch size, and its accept length over all rounds."""
    mine = [
        e
        for e in entries
        if e["server"] == server and e["batch"] == batch and e["tok_s"] and not e["failures"]
    ]
    if not mine:
        return None
    speeds = sorted(entry["tok_s"] for entry in mine)
    verifies = sum(entry["verifies"] for entry in mine)
    return {
        "tok_s": speeds[len(speeds) // 2],
        "least": speeds[0],
        "greatest": speeds[-1],
        "rounds": len(mine),
        "accept_length": round(sum(entry["gained"] for entry in mine) / verifies, 4) if verifies else None,
    }
