"""The chat page in a real browser, where there is one."""

import shutil

import pytest

sync_api = pytest.importorskip("playwright.sync_api")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture
def page(server):
    if BROWSER is None:
        pytest.skip("there is no Chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page()
        page.problems = []
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.on("console", lambda message: message.type == "error" and page.problems.append(message.text))
        page.goto(server.url)
        yield page
        browser.close()


def test_a_chat(page, server):
    expect = sync_api.expect
    expect(page.locator("#status")).to_have_text("ready")
    assert page.locator("#model option").all_inner_texts() == ["tiny"]
    page.fill("#text", "say <think>Hm.</think>Hello <b>you</b> & é 😀")
    page.press("#text", "Enter")
    page.wait_for_selector("article.assistant small")
    answer = page.locator("article.assistant")
    assert answer.locator("> div").inner_text() == "Hello <b>you</b> & é 😀"  # text, not HTML
    assert answer.locator("details div").text_content() == "Hm."
    assert "tokens/s" in answer.locator("small").inner_text()

    # Streaming: the text grows while it is written, and Stop ends it, in the engine too.
    page.fill("#text", "slow 30 " + "one two three " * 30)
    page.click("#send")
    expect(answer.nth(1).locator("> div")).to_contain_text("two")
    assert server.model.engine.open_answers == 1
    page.click("#stop")
    server.until(lambda: server.model.engine.open_answers == 0)
    text = answer.nth(1).locator("> div").inner_text()
    assert 0 < len(text.split()) < 90

    page.click("#more")
    page.fill("#temperature", "-1")
    page.fill("#text", "say x")
    page.click("#send")
    page.wait_for_selector("article.error")
    assert "temperature" in page.locator("article.error").inner_text()
    page.click("#clear")
    assert page.locator("article").count() == 0
    # The refused request is an error of the network log; nothing else is.
    assert all("400" in problem for problem in page.problems), page.problems
