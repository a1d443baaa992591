"""`python -m pypto_serving_router` is the installed command."""

from pypto_serving_router.cli import main

if __name__ == "__main__":
    main()
