"""`python -m headwise` is the command line, where no script is installed."""

from headwise.cli import main

if __name__ == "__main__":
    main()
