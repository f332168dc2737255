"""HTTPS with a certificate of our own, and clients that check it."""

import shutil
import ssl
import subprocess

import pytest

httpx = pytest.importorskip("httpx")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """(certificate, key) files for 127.0.0.1, signed by itself; the key has the password "secret"."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the command openssl")
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-days", "2", "-subj", "/CN=infinicore test", "-passout",
         "pass:secret", "-addext", "subjectAltName=IP:127.0.0.1", "-out", files[0], "-keyout", files[1]],
        check=True, capture_output=True,
    )  # fmt: skip
    return tuple(map(str, files))


@pytest.fixture(scope="module")
def server(serving, certificate):
    options = dict(zip(("ssl_certfile", "ssl_keyfile"), certificate), ssl_keyfile_password="secret")
    return serving(tls=options)


def test_a_client_that_knows_the_certificate(server, certificate):
    """Whole answers and streams, by the official client as well."""
    checks = ssl.create_default_context(cafile=certificate[0])
    body = {"messages": [{"role": "user", "content": "say Once upon a time"}]}
    with httpx.Client(base_url=server.url, verify=checks, trust_env=False, timeout=20) as client:
        assert server.url.startswith("https://") and client.get("/health").status_code == 200
        reply = client.post("/v1/chat/completions", json=body).json()
        assert reply["choices"][0]["message"]["content"].strip() == "Once upon a time"
        openai = pytest.importorskip("openai")
        official = openai.OpenAI(base_url=server.url + "/v1", api_key="none", http_client=client, max_retries=0)
        chunks = official.chat.completions.create(model="tiny", **body, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks).strip() == "Once upon a time"


def test_clients_that_do_not_are_told_and_harm_nobody(server, certificate):
    with httpx.Client(trust_env=False, timeout=20) as client:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            client.get(server.url + "/health")
        with pytest.raises(httpx.RemoteProtocolError):
            client.get(server.url.replace("https", "http") + "/health")
    old = ssl.create_default_context(cafile=certificate[0])
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    with httpx.Client(verify=old, trust_env=False, timeout=20) as client:
        assert client.get(server.url + "/health").status_code == 200


def test_files_that_do_not_fit_are_one_sentence(certificate, tmp_path, stories, capsys):
    from infinicore import cli

    for words, said in (
        (["--ssl-certfile", certificate[0]], "belong together"),
        (["--ssl-certfile", certificate[0], "--ssl-keyfile", str(tmp_path / "none")], "none"),
        (["--ssl-certfile", certificate[0], "--ssl-keyfile", certificate[0]], "`--ssl-certfile`"),
        (["--ssl-certfile", *certificate[:1], "--ssl-keyfile", certificate[1], "--ssl-keyfile-password", "wrong"],
         "`--ssl-certfile`"),
    ):  # fmt: skip
        assert cli.main(["serve", "--model", str(stories), "--port", "0", *words]) == 2
        assert said in capsys.readouterr().err
