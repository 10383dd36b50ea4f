"""The program that runs SGLang's own load generator, ``bench_serving``, under the release's python. Only its text.

Why so: the command line alone does not do. It shuffles the prompts, so that two runs could not be paired; it loads the
tokenizer with trust_remote_code whatever one wants; it takes its key from the environment and writes the server's
whole ``server_info``, keys included, into its result. So the module is imported, the few names that matter are
replaced in it, and the body of its ``if __name__ == "__main__":`` is run with a command line of ours. That body is all
there is up to 0.5.12 (`bench_serving.py`) and calls ``cli_main`` from 0.5.17 on (`benchmark/serving.py`).

Talk: one JSON line in (the job); lines that begin with MARK out: ``{"ids": [[…]]}`` once, then it waits for a line,
then ``{"progress": …}`` and one ``{"batch": …}`` for each batch size, ``{"done": true}`` or ``{"error": …}``.
"""

from __future__ import annotations

from ..accept.tokenize import IDS_OF

MARK = "AERIE-BENCH "

DRIVER = (
    IDS_OF
    + r'''
import ast, importlib.util, json, math, os, random, sys, time, types

job = json.loads(sys.stdin.readline())

def say(**what):
    print("\n" + job["mark"] + json.dumps(what), flush=True)

def module_of_release():
    if importlib.util.find_spec("datasets") is None:
        # Imported for data sets that are not used here; small installations leave it out.
        stub = types.ModuleType("datasets")
        stub.load_dataset = stub.load_from_disk = None
        sys.modules["datasets"] = stub
    for name in ("sglang.benchmark.serving", "sglang.bench_serving"):
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            found = None
        if found is not None:
            __import__(name)
            return sys.modules[name]
    raise ImportError("the release has neither sglang.benchmark.serving nor sglang.bench_serving")

def render(tokenizer):
    """Texts to send, and their ids. The server puts a BOS before a text when the tokenizer does."""
    if job["texts"] is not None:
        texts = job["texts"]
        return texts, [ids_of(tokenizer.encode(t), tokenizer) for t in texts]
    texts, ids = [], []
    first = ids_of(tokenizer.encode("x"), tokenizer)[:1]
    bos = tokenizer.bos_token if getattr(tokenizer, "bos_token_id", None) in first else None
    for chat in job["conversations"]:
        text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        ids.append(ids_of(tokenizer.encode(text, add_special_tokens=False), tokenizer))
        texts.append(text[len(bos):] if bos and text.startswith(bos) else text)
    return texts, ids

def flush_as(key):
    """/flush_cache is the administrator's where a server has a key for one, and a release that does not look at the
    answer would measure a warm cache. A server that still finishes the warm-up answers 400."""
    import requests
    post = requests.post
    def posted(url, **more):
        if not url.endswith("/flush_cache"):
            return post(url, **more)
        if key:
            more["headers"] = {"Authorization": "Bearer " + key}
        for attempt in range(20):
            answer = post(url, **more)
            if answer.status_code != 400:
                break
            time.sleep(0.5)
        answer.raise_for_status()
        return answer
    requests.post = posted

class Bar:
    """In place of tqdm: says how many requests of a batch size are done."""
    batch, said = 0, 0.0
    def __init__(self, total=0, **_):
        self.total, self.n = total, 0
    def update(self, n=1):
        self.n += n
        if self.n >= self.total or time.monotonic() - Bar.said > 1.0:
            Bar.said = time.monotonic()
            say(progress={"batch": Bar.batch, "done": self.n, "total": self.total})
    def close(self):
        pass

def command(batch, count, data, out):
    words = ["bench_serving", "--backend", "sglang", "--base-url", job["url"], "--dataset-name", "custom",
             "--dataset-path", data, "--num-prompts", str(count), "--sharegpt-output-len", str(job["max_new_tokens"]),
             "--max-concurrency", str(batch), "--warmup-requests", str(batch), "--disable-ignore-eos",
             "--output-file", out, "--output-details", "--seed", "1", "--model", job["model_path"],
             "--tokenizer", job["model_path"]]
    return words + (["--flush-cache"] if job["flush_cache"] else [])

def long_enough(module, guard, texts, batch, rounds):
    """Rows and seconds of a load that lasts as long as asked for. One that was too short is done again with more
    rounds of the set, and not counted."""
    while True:
        rows, duration = load(module, guard, texts, batch, rounds)
        if duration >= job["least_seconds"] or rounds * len(texts) >= job["most_requests"]:
            return rows, duration
        wanted = 1.1 * rounds * job["least_seconds"] / max(duration, 1e-3)
        rounds = max(rounds + 1, math.ceil(min(wanted, job["most_requests"] / len(texts))))

def load(module, guard, texts, batch, rounds):
    data, out = os.path.abspath("prompts-%d.jsonl" % batch), os.path.abspath("result-%d.jsonl" % batch)
    with open(data, "w", encoding="utf-8") as file:
        for _ in range(rounds):
            for text in texts:
                turns = [{"content": text}, {"content": "an answer that nobody reads"}]
                file.write(json.dumps({"conversations": turns}) + "\n")
    count = rounds * len(texts)
    Bar.batch = batch
    sys.argv = command(batch, count, data, out)
    space = module.__dict__
    exec(compile(guard, module.__file__, "exec"), space)
    with open(out, encoding="utf-8") as file:
        result = json.loads(file.readlines()[-1])
    errors = [e for e in result["errors"] if e]
    if errors or len(result["ttfts"]) != count:
        raise RuntimeError("%d of %d requests failed: %s" % (len(errors) or count - len(result["ttfts"]), count,
                                                            (errors or ["prompts were left out"])[0].strip()[-600:]))
    rows = []
    for i in range(count):
        tokens, decode = int(result["output_lens"][i]), sum(result["itls"][i])
        rows.append({"prompt": i % len(texts), "tokens": tokens, "ttft": round(result["ttfts"][i], 6),
                     "seconds": round(result["ttfts"][i] + decode, 6),
                     "itl": round(decode / (tokens - 1), 7) if tokens > 1 else None})
    return rows, result["duration"]

def main():
    if job["api_key"]:
        os.environ["OPENAI_API_KEY"] = job["api_key"]
    from transformers import AutoTokenizer
    extra = {"trust_remote_code": True} if job["trust_remote_code"] else {}
    tokenizer = AutoTokenizer.from_pretrained(job["model_path"], **extra)
    texts, ids = render(tokenizer)
    module = module_of_release()
    say(ids=ids, module=module.__name__)
    sys.stdin.readline()
    module.get_tokenizer = lambda *_args, **_more: tokenizer
    module.check_chat_template = lambda *_: True
    if job["flush_cache"]:
        flush_as(job["admin_key"])
    module.tqdm = Bar
    random.shuffle = lambda items: None  # the file's order stays, so that runs can be paired
    with open(module.__file__, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    guard = ast.Module(body=[s for node in tree.body if isinstance(node, ast.If) and "__main__" in ast.dump(node.test)
                             for s in node.body], type_ignores=[])
    for batch, rounds in job["runs"]:
        rows, duration = long_enough(module, guard, texts, batch, rounds)
        say(batch={"batch": batch, "rows": rows, "duration": duration, "retokenized": None})
    say(done=True)

try:
    main()
except SystemExit as error:
    say(error="bench_serving ended with %r" % (error.code,))
except BaseException as error:
    say(error=type(error).__name__ + ": " + str(error))
'''
)
