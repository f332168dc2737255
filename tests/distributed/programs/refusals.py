"""What programs have in common that try what is refused."""


def refused(kind, word, function, *args, **options):
    """`function` must raise `kind`, with `word` in its sentence."""
    try:
        function(*args, **options)
    except kind as error:
        assert word in str(error), error
    else:
        raise AssertionError(f"{word}: not refused")
