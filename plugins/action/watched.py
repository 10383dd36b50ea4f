"""Base of the action plugins whose module runs for minutes: the person sees progress, and ssh may drop.

Not an action of its own. A subclass is two lines, in a file named like its module::

    from ansible.plugins.loader import action_loader

    class ActionModule(action_loader.get("watched", class_only=True)):
        preview = False

What it does:

1. With ``preview`` (the default) the module first runs in check mode, in the ordinary way. If that changes
   nothing, or the task itself is in check mode, that result is the task's: one short call and no job.
2. Otherwise the module is started as one of Ansible's own asynchronous jobs, with its option
   ``progress_file`` naming a file that it appends JSON lines to (``{"text": "…"}``, the first one also with
   ``"pid"``). This plugin reads what is new there and prints it, again and again at first, every two seconds later
   while there always is something new. That is one short command, which waits on the host for up to two seconds until
   there is something new or the process is gone; so is the look at the result then (and every ten seconds), for which
   ``async_status``, a module, is asked where the job's file does not simply say it.

A connection that breaks is opened again for up to ``reconnect_s`` seconds; the job does not notice. A job
whose process is gone without a result (the host was rebooted) is reported, not waited for. The job's files
are in its temporary directory, which Ansible's async wrapper removes when the job ends.

How controller-side code finds this class, solved once: through Ansible's own action loader, which knows the
directories of ``action_plugins`` in ansible.cfg. No path is put on ``sys.path``, and
``ansible.module_utils.aerie`` is not importable in the controller's process, so plugins stay free of it.
"""

from __future__ import annotations

import json
import os
import posixpath
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

# A job without process and without result for this long is dead: the result is written right after the process' end.
GONE_S = 5.0
# How often one look at a job looks on the host, five times a second, before it comes back with nothing new.
HOLD_LOOKS = 10


@dataclass
class Progress:
    """What the progress file has told so far."""

    offset: int = 0
    pid: int | None = None
    rest: str = ""
    last: str = ""
    reached: str = ""
    # Said is what follows when so much is reached; an earlier task said the rest.
    after: str = ""
    # What follows when so much is reached is for a later task to say.
    upto: str = ""

    def feed(self, text: str) -> list[str]:
        """Take newly read text; return the progress texts of its whole lines, repeats left out."""
        self.offset += len(text.encode())
        *lines, self.rest = (self.rest + text).split("\n")
        said = []
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if not isinstance(record, dict):
                continue
            self.pid = record.get("pid", self.pid)
            self.reached = record.get("reached", self.reached)
            if self.after:
                self.after = "" if self.reached == self.after else self.after
                continue
            if self.upto and self.reached == self.upto:
                break
            message = str(record.get("text") or "").strip()
            if message and message != self.last:
                said.append(message)
                self.last = message
        return said


@dataclass
class Watch:
    """The loop around a running job, free of Ansible so that it can be tested.

    read(offset, pid): new text of the progress file, and whether the job's process is still there (None:
    unknown). status(): the job's result so far; ``finished`` true at the end. reconnect(): called after a
    broken connection, before the next try. until: what the job's own ``reached`` says when it has come far enough; it
    works on then, and there is no result yet.
    """

    read: Callable[[int, int | None], tuple[str, bool | None]]
    status: Callable[[], dict[str, Any]]
    reconnect: Callable[[], None]
    say: Callable[[str, float], None]
    limit_s: float
    reconnect_s: float = 180.0
    # Pause between looks: what is over in seconds is seen to be over at once, and so is the end of what had nothing to
    # tell, since such a look waits itself; what takes minutes and always tells something is looked at less.
    first_every_s: float = 0.1
    every_s: float = 2.0
    broken_every_s: float = 0.5
    hurry_s: float = 20.0
    ask_every_s: float = 10.0
    # The last text is said again when nothing new came for this long: a person should see that it still works.
    silence_s: float = 30.0
    until: str = ""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    progress: Progress = field(default_factory=Progress)

    def run(self) -> dict[str, Any]:
        """Watch until the job ends and return its result. Raises AnsibleActionFail or a connection error."""
        began = self.clock()
        said_at = asked_at = 0.0
        broken_since: float | None = None
        gone_since: float | None = None
        waits = False
        while True:
            hurry = waits or self.clock() - began < self.hurry_s
            pause = self.first_every_s if hurry else self.every_s
            self.sleep(pause if broken_since is None else max(pause, self.broken_every_s))
            elapsed = self.clock() - began
            try:
                waits, reader = False, self.progress.pid
                text, alive = self.read(self.progress.offset, reader)
                # A look with nothing new has waited on the host, and the next one may begin at once.
                waits = bool(reader) and not text
                news = latest(self.progress.feed(text))
                if not news and self.progress.last and elapsed - said_at >= self.silence_s:
                    news = [self.progress.last]
                for message in news:
                    self.say(message, elapsed)
                    said_at = elapsed
                if self.until and self.progress.reached == self.until:
                    return {}
                result: dict[str, Any] = {}
                if alive is False or elapsed - asked_at >= self.ask_every_s:
                    result, asked_at = self.status(), elapsed
            except AnsibleConnectionFailure as error:
                elapsed = self.clock() - began  # ssh may have needed a minute to find out
                if broken_since is None:
                    broken_since = elapsed
                    self.say(
                        f"connection lost, trying for {duration(self.reconnect_s)} ({first_line(error)})",
                        elapsed,
                    )
                elif elapsed - broken_since > self.reconnect_s:
                    raise
                self.reconnect()
                continue
            if broken_since is not None:
                self.say("connected again; the work went on meanwhile", elapsed)
                broken_since = None
            if result.get("finished"):
                return result
            if alive is not False:
                gone_since = None
            elif gone_since is None:
                gone_since = elapsed
            elif elapsed - gone_since >= GONE_S:
                raise AnsibleActionFail(
                    "The process that did the work on the host is gone, without a result [watched-job-gone]\n"
                    f"  last seen: {self.progress.last or 'nothing'}\n"
                    "Next: `journalctl -b -1` and `journalctl -k` (a reboot? out of memory?), then run again"
                )
            if elapsed > self.limit_s:
                raise AnsibleActionFail(
                    f"The work did not end within {self.limit_s:.0f} s [watched-job-too-slow]\n"
                    f"  last seen: {self.progress.last or 'nothing'}\n"
                    "Next: raise the limit and run again"
                )


def plain_result(text: str) -> dict[str, Any] | None:
    """The result in a job's file; None as long as there is none, and for one with values that Ansible has to decode."""
    if "__ansible_type" in text:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "started" not in found else None


def runs_still(text: str) -> bool:
    """Whether a job's file is the one that Ansible's wrapper writes before the module has ended."""
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return isinstance(found, dict) and bool(found.get("started")) and not found.get("finished")


def latest(messages: list[str]) -> list[str]:
    """The last of each run of texts that begin with the same word: a hundred small packages are no news each."""
    kept: list[str] = []
    for message in messages:
        if kept and kept[-1].split()[0] == message.split()[0]:
            kept.pop()
        kept.append(message)
    return kept


def first_line(error: BaseException) -> str:
    """The first line of an error's text, for a progress line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def duration(seconds: float) -> str:
    """Seconds as a person reads them: 42s, 1m12s, 1h02m."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


class ActionModule(ActionBase):
    """See the file's documentation. Subclasses set the attributes below."""

    TRANSFERS_FILES = False

    # Ask in check mode first, and start nothing when nothing would change.
    preview = True
    # Longest time that the work may take, in seconds; limit_option names a module option that overrides it.
    limit_s = 7200
    limit_option: str | None = None
    # How long a broken connection is tried again, in seconds.
    reconnect_s = 180
    # Modules that come after a long job. Making the payload of one takes the controller a third of a second and more,
    # once in a run; here it waits anyway.
    makes_ready: tuple[str, ...] = ()

    def runs_long(self, args: dict[str, Any]) -> bool:
        """Whether these options make a long run. Otherwise the module is run like any other."""
        return True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        task_vars = task_vars or {}
        result: dict[str, Any] = super().run(tmp, task_vars)
        if self._task.action.rsplit(".", 1)[-1] == "watched":
            raise AnsibleActionFail("`watched` is the base of other actions; it does nothing itself.")
        args = dict(self._task.args)
        if self._task.check_mode or not self.runs_long(args):
            result.update(self._execute_module(module_args=args, task_vars=task_vars))
            return result
        if self.preview:
            foreseen = self._foresee(args, task_vars)
            if foreseen.get("failed") or foreseen.get("unreachable") or not foreseen.get("changed"):
                result.update(foreseen)
                return result
        result.update(self._watched(args, task_vars))
        return result

    def _foresee(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Run the module in check mode, whatever the task's own mode is."""
        self._task.check_mode = True
        try:
            return self._execute_module(module_args=dict(args), task_vars=task_vars)
        finally:
            self._task.check_mode = False

    def _watched(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """Start the job, watch it, return the module's own result."""
        started = self.start_job(args, task_vars)
        return self.watch_job(started["job"], task_vars) if "job" in started else started

    def start_job(
        self, args: dict[str, Any], task_vars: dict[str, Any], files: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Start the job: ``{"job": what watch_job takes}``, or why it did not start.

        files: options of the module that name files in the job's own directory, and these names.
        """
        limit_s = float(args.get(self.limit_option or "") or self.limit_s)
        if self._connection._shell.tmpdir is None:
            self._make_tmp_path()
        names = {**(files or {}), "progress_file": "progress.jsonl"}
        paths = {
            option: self._connection._shell.join_path(self._connection._shell.tmpdir, name)
            for option, name in names.items()
        }
        started = self._start({**args, **paths}, int(limit_s), task_vars)
        if started.get("failed") or not started.get("ansible_job_id"):
            return started
        job = {"id": started["ansible_job_id"], "results_file": str(started.get("results_file") or "")}
        return {"job": {**paths, **job, "limit_s": limit_s}}

    def leave_running(
        self, args: dict[str, Any], task_vars: dict[str, Any], name: str, files: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Start the job and come back at once: ``{name: what watch_job takes}``, for a later task, or why it did not
        start. Its directory is from now on its own: Ansible's wrapper removes it when the job ends."""
        started = self.start_job(args, task_vars, files)
        if "job" not in started:
            return started
        self._connection._shell.tmpdir = None
        return {"changed": False, name: started["job"]}

    def watch_job(
        self,
        job: dict[str, Any],
        task_vars: dict[str, Any],
        until: str = "",
        after: str = "",
        also: Callable[[], str] = str,
    ) -> dict[str, Any]:
        """Watch a job of start_job to its end and return the module's own result; or ``until`` it has reached so far,
        and return nothing.

        after: how far it was when an earlier task had watched it. also: gives a command for the host at each look.
        """
        host = task_vars.get("inventory_hostname", "host")
        display = Display()
        limit_s = float(job["limit_s"])

        def say(text: str, elapsed: float) -> None:
            display.display(f"  {host}: {text} ({duration(elapsed)})")

        watch = Watch(
            read=lambda offset, pid: self._read_progress(job["progress_file"], offset, pid, also()),
            status=lambda: self._result(job["id"], job["results_file"], task_vars),
            reconnect=self._reconnect,
            say=say,
            # The wrapper on the host ends the job at limit_s and leaves a result; ours is the longer stop.
            limit_s=limit_s + 60,
            reconnect_s=self.reconnect_s,
            until=until,
            progress=Progress(after=after, upto=until),
        )
        began = time.monotonic()
        self._make_ready(task_vars)
        outcome = watch.run()
        # What ended well meanwhile (nobody could look, or it was quick) keeps its result for the task that wants it.
        if not outcome or (until and not outcome.get("failed")):
            return {}
        # Unless the module counts itself: a job can have begun its work long before anybody watched.
        outcome.setdefault("elapsed_s", round(time.monotonic() - began, 1))
        self._forget(str(outcome.get("results_file") or ""))
        for key in ("ansible_job_id", "finished", "started", "results_file"):
            outcome.pop(key, None)
        if outcome.get("msg") == "Timeout exceeded":
            outcome["msg"] = (
                f"The work did not end within {limit_s:.0f} s and was stopped [watched-job-too-slow]\n"
                f"  last seen: {watch.progress.last or 'nothing'}\nNext: raise the limit and run again"
            )
        return outcome

    def still_here(self, path: str) -> Callable[[], str]:
        """For ``also`` of watch_job: touch a file of the job at each look, as long as ansible-playbook lives.

        This worker outlives it, and what the job keeps for it (a lease) must not.
        """
        run = os.getppid()

        def touch() -> str:
            if os.getppid() != run:
                raise AnsibleActionFail("the run that waited is gone")
            return f"touch {self._connection._shell.quote(path)}"

        return touch

    def _make_ready(self, task_vars: dict[str, Any]) -> None:
        """Have Ansible make payloads now; it keeps each for the run. One that cannot be made fails in its own task."""
        for name in self.makes_ready:
            self._make_payload(name, task_vars)

    @contextmanager
    def making_ready(self, name: str, task_vars: dict[str, Any]) -> Iterator[None]:
        """Have the payload of a later task's module made beside a call of this one's, which waits for its host.

        This one's is made before, so that its host need not wait. Both are waited for at the end: two processes that
        make the same payload would write into one file.
        """
        self._make_payload(self._task.action.rsplit(".", 1)[-1], task_vars)
        beside = threading.Thread(target=copy_context().run, args=(self._make_payload, name, task_vars))
        beside.start()
        try:
            yield
        finally:
            beside.join()

    def _make_payload(self, name: str, task_vars: dict[str, Any]) -> None:
        try:
            self._configure_module(name, {}, task_vars)
        except AnsibleError as error:
            Display().vv(f"{name} is not made ready: {first_line(error)}")

    def _start(self, args: dict[str, Any], limit_s: int, task_vars: dict[str, Any]) -> dict[str, Any]:
        """Start the module as an asynchronous job. Its time limit travels in the task's `async` value."""
        self._task.async_val = limit_s
        try:
            return self._execute_module(module_args=args, task_vars=task_vars, wrap_async=True)
        finally:
            self._task.async_val = 0

    def _result(self, job: str, results_file: str, task_vars: dict[str, Any]) -> dict[str, Any]:
        """What async_status says. A result that holds plain values is read from its file, without a module call."""
        if results_file:
            quoted = self._connection._shell.quote(results_file)
            answer = self._low_level_execute_command(f"cat {quoted}", sudoable=True)
            text = str(answer.get("stdout", ""))
            if runs_still(text):
                return {"finished": False}
            found = plain_result(text)
            if found is not None:
                return {**found, "finished": True, "results_file": results_file}
        return self._status(job, task_vars)

    def _status(self, job: str, task_vars: dict[str, Any]) -> dict[str, Any]:
        async_dir = self._remote_expand_user(self.get_shell_option("async_dir", default="~/.ansible_async"))
        return self._execute_module(
            module_name="ansible.legacy.async_status",
            module_args={"jid": job, "mode": "status", "_async_dir": async_dir},
            task_vars=task_vars,
        )

    def _forget(self, results_file: str) -> None:
        """Remove the job's result file; a connection that breaks right here costs only that file."""
        if not results_file:
            return
        try:
            self._low_level_execute_command(
                f"rm -f {self._connection._shell.quote(results_file)}", sudoable=True
            )
        except AnsibleError:
            Display().vv(f"{results_file} was left on the host")

    def _read_progress(
        self, path: str, offset: int, pid: int | None, also: str = ""
    ) -> tuple[str, bool | None]:
        """New text of the progress file, and whether process ``pid`` is there (None when not known yet).

        Without a pid the job's directory tells: it is gone when the job ended before anybody looked.
        """
        quoted = self._connection._shell.quote(path)
        there = f"test -d {self._connection._shell.quote(posixpath.dirname(path))}"
        command = f"tail -c +{offset + 1} {quoted} 2>/dev/null"
        if pid:
            there = f"test -d /proc/{int(pid)}"
            nothing_new = f'test "$(wc -c < {quoted})" -le {offset}'
            wait = f"n=0; while test $n -lt {HOLD_LOOKS} && {there} && {nothing_new}; do sleep 0.2; n=$((n+1)); done"
            command = f"({wait}) 2>/dev/null; {command}"
        if also:
            command = f"({also}) >/dev/null 2>&1; {command}"
        command += f"; {there} || printf '\\nPROCESS GONE\\n'"
        answer = self._low_level_execute_command(command, sudoable=True)
        # ssh gives the command a terminal (-tt), which writes \r\n for \n. Counted, the next look would begin too late.
        text = str(answer.get("stdout", "")).replace("\r\n", "\n")
        marker = "\nPROCESS GONE\n"
        at = text.rfind(marker.rstrip("\n"))
        return (text, True if pid else None) if at < 0 else (text[:at], False)

    def _reconnect(self) -> None:
        try:
            self._connection.reset()
        except AnsibleError as error:
            Display().vv(f"resetting the connection: {first_line(error)}")
