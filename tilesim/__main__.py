"""``python -m tilesim``: the same as the command ``tilesim``."""

from tilesim.cli import main

if __name__ == "__main__":
    main()
