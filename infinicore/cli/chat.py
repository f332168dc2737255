"""`infinicore chat`: a conversation with a model, by its chat template."""

import sys

from . import generate, progress

HELP = "/reset starts over, /exit (or end of input) ends."


def add_arguments(parser):
    """Add the options of `infinicore chat`."""
    generate.add_model_arguments(parser)
    parser.add_argument("--system", metavar="TEXT", help="a system message at the beginning")
    parser.add_argument("--context", type=int, default=4096, metavar="N", help="tokens to remember at most")
    parser.epilog = HELP


def run(arguments):
    """Talk until the input ends; returns the exit status."""
    from ..lm import Conversation

    if arguments.context < 2:
        raise ValueError(f"`--context` must be at least 2 tokens, got {arguments.context}")
    model = generate.load(arguments)
    conversation = Conversation(
        model,
        system=arguments.system,
        context=arguments.context,
        cache=arguments.cache,
        **generate.options(arguments),
    )
    if conversation.template is None:
        print("This checkpoint has no chat template: messages are written one after another.", file=sys.stderr)
    if sys.stdin.isatty():
        print(HELP, file=sys.stderr)
    while True:
        line = _read()
        if line is None or line.strip() == "/exit":
            return 0
        if line.strip() == "/reset":
            conversation.reset()
        elif line.strip():
            _answer(conversation, line)


def _read():
    """The next line of the user; None at the end."""
    if sys.stdin.isatty():
        try:
            return input("> ")
        except EOFError:
            print()
            return None
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None


def _answer(conversation, line):
    """Stream the answer. An interrupt ends the answer, not the conversation; a turn that does not fit is refused."""
    try:
        generation = conversation.say(line)
    except ValueError as error:
        print(f"infinicore: error: {error}", file=sys.stderr)
        return
    try:
        for token in generation:
            progress.clear()
            sys.stdout.write(token.text)
            sys.stdout.flush()
    except KeyboardInterrupt:
        pass
    conversation.keep(generation)
    sys.stdout.write("\n")
    sys.stdout.flush()
