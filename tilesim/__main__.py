"""``python -m tilesim``: the same as the command ``tilesim``."""

import sys

try:
    from tilesim.cli import main
except KeyboardInterrupt:
    sys.stderr.write("tilesim: interrupted\n")
    raise SystemExit(130) from None

if __name__ == "__main__":
    main()
