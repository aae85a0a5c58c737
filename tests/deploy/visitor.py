"""What people do in a browser at the front door of the hub. It runs in the hub's container, which has its imports.

python visitor.py enter teacher anna ben      # sign up, be let in by the teacher, sign in, start a server
python visitor.py start anna                  # sign in, and start the server again if it is not there
python visitor.py kernel anna 'print(6 * 7)'  # what a kernel prints while somebody asks for its debugger
"""

import asyncio
import json
import sys
import time
import uuid
import warnings

import requests
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

FRONT = "https://127.0.0.1"
warnings.filterwarnings("ignore")


def password(name):
    return f"{name}-has-a-long-password"


def session(name):
    """Sign in."""
    made = requests.Session()
    made.verify = False
    post(made, "login", username=name, password=password(name))
    assert "jupyterhub-session-id" in made.cookies, f"{name} cannot sign in"
    return made


def post(made, page, **fields):
    made.get(f"{FRONT}/hub/{page}").raise_for_status()
    xsrf = next(cookie.value for cookie in made.cookies if cookie.name == "_xsrf" and cookie.path == "/hub/")
    answer = made.post(
        f"{FRONT}/hub/{page}", data={**fields, "_xsrf": xsrf}, headers={"Referer": f"{FRONT}/hub/{page}"}
    )
    answer.raise_for_status()
    return answer


def wait_for_the_hub():
    for _ in range(120):
        try:
            return requests.get(f"{FRONT}/hub/login", verify=False).raise_for_status()
        except OSError:  # nginx, the proxy and the hub start one after the other
            time.sleep(1)
    return sys.exit("the hub did not start")


def enter(teacher, *learners):
    wait_for_the_hub()
    for name in (teacher, *learners):
        made = requests.Session()
        made.verify = False
        post(made, "signup", username=name, signup_password=password(name), signup_password_confirmation=password(name))
    for name in learners:
        stranger = requests.Session()
        stranger.verify = False
        answer = post(stranger, "login", username=name, password=password(name))
        assert "/login" in answer.url, f"{name} came in before the teacher said so"
    boss = session(teacher)
    for name in learners:
        boss.get(f"{FRONT}/hub/authorize/{name}").raise_for_status()
    for name in learners:
        start(name)
    others = session(learners[0]).get(f"{FRONT}/user/{learners[1]}/api/contents")
    assert others.status_code == 403, f"{learners[0]} reads the files of {learners[1]}"


def start(name):
    """Sign in and wait until the own server answers."""
    made = session(name)
    made.get(f"{FRONT}/hub/spawn/{name}")
    for _ in range(180):
        made.get(f"{FRONT}/user/{name}/lab")  # signs in at the learner's own server
        if made.get(f"{FRONT}/user/{name}/api/status").status_code == 200:
            return
        made.get(f"{FRONT}/hub/spawn/{name}")
        time.sleep(1)
    sys.exit(f"the server of {name} did not start")


async def kernel(name, code):
    made = session(name)
    made.get(f"{FRONT}/user/{name}/lab")
    xsrf = next(cookie.value for cookie in made.cookies if cookie.name == "_xsrf" and name in cookie.path)
    answer = made.post(f"{FRONT}/user/{name}/api/kernels", json={"name": "python3"}, headers={"X-XSRFToken": xsrf})
    address = f"wss://127.0.0.1/user/{name}/api/kernels/{answer.json()['id']}/channels"
    cookies = "; ".join(f"{cookie.name}={cookie.value}" for cookie in made.cookies)
    asked = HTTPRequest(address, headers={"Cookie": cookies, "Origin": FRONT}, validate_cert=False)
    line = await websocket_connect(asked)
    initialize = {"type": "request", "seq": 1, "command": "initialize", "arguments": {}}
    send(line, "control", "debug_request", initialize)
    send(line, "shell", "execute_request", {"code": code, "silent": False})
    printed, kinds = "", set()
    while not {"execute_reply", "debug_reply"} <= kinds or not printed:
        said = json.loads(await asyncio.wait_for(line.read_message(), 120))
        printed += said["content"].get("text", "")
        kinds.add(said["msg_type"])
    print(printed, end="")


def send(line, channel, kind, content):
    header = {
        "msg_id": uuid.uuid4().hex,
        "msg_type": kind,
        "session": "s",
        "username": "",
        "version": "5.3",
        "date": "",
    }
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": channel}
    line.write_message(json.dumps({**message, "buffers": []}))


if sys.argv[1] == "enter":
    enter(*sys.argv[2:])
elif sys.argv[1] == "start":
    wait_for_the_hub()
    start(sys.argv[2])
else:
    asyncio.run(kernel(*sys.argv[2:]))
