"""Everything about tasks in a real browser: editor, form, builder, list, revisions; no complaint of the policy."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.e2e.up_kit import Up
from tests.e2e.window import Window

pytestmark = pytest.mark.one_engine

P = "/panel/p/default"
# Tabs, blanks at a line's end, an empty first line, quotes, other scripts, and no line break at the end.
AWKWARD = "\n\tif x:  \n\t\techo \"a\"'b' `c` $D \\\n\n  末尾 \t\u00a0é"


def open_window(chromium: Any, up: Up, **options: Any) -> Window:
    ann = Window(chromium, up, **({"language": "en", "width": 1440} | options))
    ann.sign_in()
    return ann


def document(ann: Window, slug: str) -> dict[str, Any]:
    answer = ann.page.request.get(f"{ann.base}/api/v3/projects/default/tasks/{slug}")
    found: dict[str, Any] = answer.json()
    return found


def make(ann: Window, name: str, text: str = "echo hello", **fields: str) -> None:
    """A shell task, saved and not run."""
    ann.go(f"{P}/tasks/new/")
    ann.page.fill("#f-name", name)
    ann.page.check("input[name=kind][value=shell]")
    ann.write("f-shell", text)
    for field, value in fields.items():
        if not ann.page.locator(f"#f-{field}").is_visible():
            ann.page.locator(f"details:has(#f-{field}) > summary").last.click()
        ann.page.fill(f"#f-{field}", value)
    ann.page.click("button[value=save]")
    ann.page.wait_for_url(re.compile(r"/task/[^/]+/$"))


@pytest.mark.parametrize("scripts", [True, False])
def test_a_script_comes_back_byte_for_byte(settled: Up, chromium: Any, scripts: bool) -> None:
    ann = open_window(chromium, settled, scripts=scripts)
    name = f"Bytes {scripts}"
    slug = name.lower().replace(" ", "-")
    make(ann, name, AWKWARD)
    assert document(ann, slug)["shell"] == AWKWARD
    # Saving what was not touched changes nothing; a change elsewhere leaves every byte.
    ann.go(f"{P}/task/{slug}/edit/")
    ann.page.click("button[value=save]")
    ann.page.wait_for_url(f"**/task/{slug}/")
    assert document(ann, slug)["version"] == 1
    ann.go(f"{P}/task/{slug}/edit/")
    ann.page.fill("#f-name", f"{name} again")
    ann.page.click("button[value=save]")
    ann.page.wait_for_url(f"**/task/{slug}/")
    found = document(ann, slug)
    assert (found["version"], found["revision"], found["shell"]) == (2, "1", AWKWARD)
    if scripts:
        ann.close()


def test_writing_in_the_editor_and_leaving_it(settled: Up, chromium: Any) -> None:
    ann = open_window(chromium, settled)
    page, keys = ann.page, ann.page.keyboard
    ann.go(f"{P}/tasks/new/")
    page.fill("#f-name", "Typed")
    page.locator("ql-editor[for=f-source] .cm-content").click()
    keys.type("import os\nfor name in 'AB':\nprint(repr(os.environ[name]))")
    assert ann.code("f-source") == "import os\nfor name in 'AB':\n    print(repr(os.environ[name]))"
    keys.press("Tab")
    assert ann.code("f-source").endswith(")    ")
    keys.press("Escape")
    keys.press("Tab")
    assert page.evaluate("document.activeElement.localName") != "ql-editor"
    # Single keys of the page do nothing while somebody types.
    assert page.url.endswith("/tasks/new/")
    page.click("#f-env")
    ann.paste(
        page.locator("[data-rows-of=env] [name=env_name]").first,
        '# two values\nexport A=one "two" $HOME `x`  \n\nB=first\nsecond = line\n',
    )
    names = page.locator("[data-rows-of=env] [name=env_name]").evaluate_all(
        "all => all.map(one => one.value)"
    )
    assert names == ["A", "B"]
    assert page.locator("[data-unsaved]").is_visible()
    keys.press("Control+Enter")
    page.wait_for_url("**/panel/runs/**")
    page.locator(".ql-chip[data-state=succeeded]").first.wait_for(timeout=10_000)
    assert document(ann, "typed")["env"] == {"A": 'one "two" $HOME `x`  ', "B": "first\nsecond = line"}
    ann.close()


def test_what_was_typed_survives_a_closed_page_a_lost_session_and_a_server_that_is_away(
    settled: Up, chromium: Any
) -> None:
    ann = open_window(chromium, settled)
    page = ann.page
    page.on("dialog", lambda dialog: dialog.accept())
    ann.go(f"{P}/tasks/new/")
    page.fill("#f-name", "Kept")
    ann.write("f-source", "print('kept')")
    ann.go(f"{P}/tasks/")
    ann.go(f"{P}/tasks/new/")
    assert page.input_value("#f-name") == ""
    page.click("[data-draft-back]")
    assert (page.input_value("#f-name"), ann.code("f-source")) == ("Kept", "print('kept')")
    assert "kept" in page.locator("ql-editor[for=f-source] .cm-content").inner_text()
    page.route("**/tasks/new/", lambda route: route.abort())
    page.click("button[value=save]")
    page.locator("[data-send-failed]").wait_for(state="visible")
    assert page.input_value("#f-name") == "Kept"
    page.unroute("**/tasks/new/")
    ann.context.clear_cookies(name="ql_session")
    page.click("button[value=save]")
    page.wait_for_url("**/panel/login/**")
    page.fill("#username", "ann")
    page.fill("#password", "correct horse 7 battery")
    page.click("main button.ql-primary")
    page.wait_for_url("**/tasks/new/")
    page.click("[data-draft-back]")
    # Two clicks and Enter in a line make one task, and run nothing.
    page.locator("button[value=save]").dblclick()
    page.wait_for_url("**/task/kept/")
    assert document(ann, "kept-2").get("code") == "not_found"
    assert page.get_by_text("It has not run yet.").first.is_visible()
    ann.go(f"{P}/tasks/new/")
    assert page.locator("[data-draft-note]").is_hidden()
    page.fill("#f-name", "By enter")
    ann.write("f-source", "print(1)")
    page.locator("#f-name").press("Enter")
    page.wait_for_url("**/task/by-enter/")
    ann.complaints = [line for line in ann.complaints if "ERR_FAILED" not in line and "404" not in line]
    ann.close()


def test_a_stale_form_shows_both_and_puts_one_on_top(settled: Up, chromium: Any) -> None:
    ann = open_window(chromium, settled)
    make(ann, "Stale", "echo one")
    edit = f"{P}/task/stale/edit/"
    ann.go(edit)
    other = ann.context.new_page()
    other.goto(f"{ann.base}{edit}")
    other.locator("ql-editor[for=f-shell] .cm-content").click()
    other.keyboard.type("# theirs\n")
    other.click("button[value=save]")
    other.wait_for_url("**/task/stale/")
    other.close()
    page = ann.page
    ann.write("f-shell", "echo mine")
    page.click("button[value=save] >> nth=-1")
    page.get_by_text("ann saved another version").wait_for()
    theirs, mine = page.locator("ql-diff .cm-content").all_inner_texts()
    assert "theirs" in theirs and "echo mine" in mine
    page.get_by_role("button", name="Put mine on top").click()
    page.wait_for_url("**/task/stale/")
    assert (document(ann, "stale")["shell"], document(ann, "stale")["revision"]) == ("echo mine", "3")
    ann.complaints = [line for line in ann.complaints if "409" not in line]
    ann.close()


@pytest.mark.parametrize(
    ("language", "wrong"), [("en", "Quartz"), ("zh-hans", "Quartz")], ids=["en", "zh-hans"]
)
def test_the_schedule_builder(settled: Up, chromium: Any, language: str, wrong: str) -> None:
    ann = open_window(chromium, settled, language=language)
    slug = f"built-{language}"
    make(ann, slug)
    page = ann.page
    ann.go(f"{P}/task/{slug}/triggers/")
    page.locator(".ql-card-foot [data-builder-open]").click()
    dialog = page.locator("dialog[open]")
    dialog.locator("[data-preset=daily]").click()
    dialog.locator("[data-set=time]").fill("02:30")
    assert dialog.locator("[name=t_schedule]").input_value() == "30 2 * * *"
    dialog.locator("[name=t_timezone]").fill("America/New_York")
    rows = dialog.locator(".ql-next-ten tbody tr")
    dialog.locator(".ql-next-ten th", has_text="America/New_York").wait_for()
    assert "Europe/Berlin" in dialog.locator(".ql-next-ten thead").inner_text()
    assert rows.count() == 10 and "02:30" in rows.first.inner_text()
    # Both clock changes of the year are spelled out.
    assert dialog.locator(".ql-clock-changes li").count() == 2
    dialog.locator("[name=t_schedule]").fill("0 0 ? * 1")
    dialog.locator(".ql-marked mark").wait_for()
    assert (
        dialog.locator(".ql-marked mark").inner_text() == "?"
        and wrong in dialog.locator(".ql-error").inner_text()
    )
    with page.expect_response(lambda answer: answer.request.method == "POST"):
        dialog.locator("button[value=save]").click()
    dialog.locator("form:not([inert]) [data-meaning] .ql-error").wait_for()
    dialog.locator("[name=t_schedule]").fill("0 0 * * 1")
    dialog.locator(".ql-means").wait_for()
    dialog.locator("button[value=save]").click()
    page.locator(".ql-triggers tr").wait_for()
    assert "0 0 * * 1" in page.locator(".ql-triggers").inner_text()
    page.locator(".ql-card-foot [data-builder-open]").click()
    dialog.locator("[name=t_kind][value=webhook]").check()
    dialog.locator("button[value=save]").click()
    address = dialog.locator("#hook").inner_text()
    assert re.search(r"/hooks/\S{20,}$", address) and address in dialog.locator("#hook-curl").inner_text()
    assert page.request.post(address, headers={"X-Delivery-Id": "1"}, data={}).status < 300
    dialog.get_by_role("link").last.click()
    page.wait_for_url("**/triggers/")
    assert address not in page.content() and page.locator(".ql-triggers tr").count() == 2
    ann.complaints = [line for line in ann.complaints if "400" not in line]
    ann.close()


def test_a_trigger_is_added_while_the_form_is_open_and_nothing_typed_is_lost(
    settled: Up, chromium: Any
) -> None:
    ann = open_window(chromium, settled)
    make(ann, "While open")
    page = ann.page
    ann.go(f"{P}/task/while-open/edit/")
    ann.write("f-shell", "echo not saved yet")
    page.locator(".ql-card-foot [data-builder-open]").click()
    dialog = page.locator("dialog[open]")
    dialog.locator("[name=t_schedule]").fill("5 5 * * *")
    dialog.locator("button[value=save]").click()
    page.locator(".ql-triggers", has_text="5 5 * * *").wait_for()
    assert ann.code("f-shell") == "echo not saved yet" and page.url.endswith("/edit/")
    page.click("button[value=save]")
    page.wait_for_url("**/task/while-open/")
    assert document(ann, "while-open")["shell"] == "echo not saved yet"
    ann.close()


def test_triggers_without_script(settled: Up, chromium: Any) -> None:
    ann = open_window(chromium, settled, scripts=False)
    make(ann, "Plain rules")
    page = ann.page
    ann.go(f"{P}/task/plain-rules/triggers/")
    page.locator(".ql-card-foot a").click()
    page.fill("[name=t_schedule]", "15 4 * * *")
    page.click("button[value=check]")
    assert page.locator(".ql-next-ten tbody tr").count() == 10
    page.click("button[value=save]")
    page.wait_for_url("**/triggers/")
    assert "15 4 * * *" in page.locator(".ql-triggers").inner_text()
    page.locator(".ql-triggers summary").click()
    page.get_by_role("button", name="Disable").click()
    assert "Disabled" in page.locator(".ql-triggers").inner_text()
    ann.context.close()


def make_many(ann: Window, label: str, count: int) -> None:
    """Tasks over the API, with the session of the page."""
    csrf = next(one["value"] for one in ann.context.cookies() if "csrf" in one["name"])
    for number in range(count):
        body = {"name": f"{label} {number}", "shell": "true", "labels": [label], "concurrency": "skip"}
        made = ann.page.request.post(
            f"{ann.base}/api/v3/projects/default/tasks",
            data=body,
            headers={"X-CSRFToken": csrf, "Referer": ann.base},
        )
        assert made.status == 201, made.text()


def test_all_that_match_goes_on_in_the_background(settled: Up, chromium: Any) -> None:
    ann = open_window(chromium, settled)
    page = ann.page
    make_many(ann, "wide", 52)
    ann.go(f"{P}/tasks/?search=label:wide")
    page.locator("[data-select-all]").check()
    page.locator("[data-all]").check()
    page.locator(".ql-bulk button[value=pin]").click()
    assert page.locator("h1").inner_text() == "Pin all tasks that match?"
    page.get_by_role("button", name="Do it").click()
    page.locator("strong", has_text="52 pinned").wait_for(timeout=20_000)
    page.locator(".ql-chip[data-state=succeeded]").wait_for()
    ann.close()


def test_many_tasks_at_once(settled: Up, chromium: Any) -> None:
    ann = open_window(chromium, settled)
    page = ann.page
    make_many(ann, "bulk", 11)
    ann.go(f"{P}/tasks/?search=label:bulk")
    bar = page.locator(".ql-bulk")
    assert bar.is_hidden()
    page.locator("input[name=task]").first.check()
    page.locator("input[name=task]").nth(2).click(modifiers=["Shift"])
    assert bar.is_visible() and bar.locator("[data-selected]").inner_text() == "3 selected"
    bar.locator("#bulk-label").fill("夜间")
    bar.locator("button[value=label]").click()
    page.get_by_text("3 labelled.").wait_for()
    assert page.locator("tr[data-row]").filter(has_text="夜间").count() == 3
    # Ten and more are asked about first, and what was refused is listed with its reason.
    page.locator("tr[data-row]").first.locator("summary").click()
    page.locator("tr[data-row]").first.get_by_role("button", name="Disable").click()
    page.locator("[data-select-all]").check()
    page.locator(".ql-bulk button[value=run]").click()
    assert page.locator("h1").inner_text() == "Run 11 tasks?"
    page.get_by_role("button", name="Do it").click()
    assert page.locator("h1").inner_text() == "10 started, 1 not."
    assert "task_disabled" in page.locator(".ql-card").first.inner_text()
    ann.close()


def test_views_of_ones_own(settled: Up, chromium: Any) -> None:
    ann = open_window(chromium, settled)
    page = ann.page
    make(ann, "Viewed")
    ann.go(f"{P}/tasks/?search=name:viewed&order=-name")
    page.get_by_text("Save as a view").first.click()
    page.fill("#view-name", "Mine <b>")
    page.locator("dialog[open] .ql-primary").click()
    page.wait_for_url("**/tasks/?view=*")
    tab = page.locator(".ql-tabs a[aria-current=page]")
    assert tab.inner_text() == "Mine <b>"
    assert (
        page.input_value("#search") == "name:viewed" and page.locator("th[aria-sort=descending]").count() == 1
    )
    page.get_by_role("button", name="Remove the view").click()
    page.get_by_text("View removed").wait_for()
    assert page.get_by_text("Mine <b>", exact=True).count() == 0
    ann.close()


def test_revisions_are_compared_and_used_again(settled: Up, chromium: Any) -> None:
    ann = open_window(chromium, settled)
    make(ann, "Revised", "echo one\necho two\n")
    page = ann.page
    ann.go(f"{P}/task/revised/edit/")
    ann.write("f-shell", "echo one\necho three\n")
    page.click("button[value=save]")
    page.wait_for_url("**/task/revised/")
    ann.go(f"{P}/task/revised/revisions/")
    page.get_by_role("button", name="Compare").click()
    diff = page.locator("ql-diff")
    diff.locator(".cm-mergeView").wait_for()
    assert diff.locator(".cm-editor").count() == 2
    assert (
        diff.locator(".cm-merge-a .cm-changedText").inner_text() == "wo"[-2:]
        or diff.locator(".cm-merge-a .cm-changedLine").inner_text() == "echo two"
    )
    assert diff.locator(".cm-merge-b .cm-changedLine").inner_text() == "echo three"
    page.locator("[data-mode=inline]").click()
    assert diff.locator(".cm-deletedChunk").inner_text().strip() == "echo two"
    page.get_by_role("button", name="Use revision 1 again").click()
    page.get_by_text("Revision 3 is what revision 1 was.").wait_for()
    assert document(ann, "revised")["shell"] == "echo one\necho two\n"
    ann.close()


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_every_page_about_tasks_fits(settled: Up, chromium: Any, language: str, width: int) -> None:
    ann = open_window(chromium, settled, language=language, width=width)
    slug = f"fits-{language}-{width}"
    make(ann, slug, "echo " + "x" * 300)
    pages = ["tasks/", "tasks/?order=next", "tasks/new/?from=python", "skips/"]
    tabs = (
        "",
        "script/",
        "triggers/",
        "triggers/new/",
        "revisions/",
        "why/?hours=720",
        "settings/",
        "edit/",
        "archive/",
    )
    pages += [f"task/{slug}/{tab}" for tab in tabs]
    for path in pages:
        ann.go(f"{P}/{path}")
        too_wide = ann.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert too_wide <= 0, (path, too_wide)
    ann.close()


def test_a_value_that_looks_like_a_secret_is_kept_by_one_press(settled: Up, chromium: Any) -> None:
    ann = open_window(chromium, settled)
    ann.go(f"{P}/tasks/new/")
    page = ann.page
    page.fill("#f-name", "Keeps a token")
    page.check("input[name=kind][value=shell]")
    ann.write("f-shell", 'printf %s "$PUSH_TOKEN"')
    page.click("#f-env")
    row = page.locator('[data-rows-of="env"] .ql-pair').first
    row.locator("[name=env_name]").fill("PUSH_PLACE")
    row.locator("[name=env_value]").fill("somewhere")
    assert row.locator(".ql-keep").count() == 0
    row.locator("[name=env_name]").fill("PUSH_TOKEN")
    row.locator("[name=env_value]").fill("two\nlines of it")
    row.locator("[data-keep]").click()
    page.locator("[data-kept]").wait_for()
    assert page.locator("[name=secret_name]").first.input_value() == "PUSH_TOKEN"
    assert page.locator("[name=env_value]").evaluate_all("all => all.map(one => one.value).join('')") == ""
    page.click("button[value=save]")
    page.wait_for_url("**/task/keeps-a-token/")
    made = document(ann, "keeps-a-token")
    assert made["env"] == {} and made["secrets"] == {"PUSH_TOKEN": "PUSH_TOKEN"}
    assert not ann.complaints
    ann.close()
