"""`python -m headwise` is the command line, where no script is installed."""

from headwise.cli.app import main

if __name__ == "__main__":
    main()
