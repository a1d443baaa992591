"""`python -m pypto_serving_router.sim` is the installed `pypto-serving-sim`."""

from pypto_serving_router.sim.cli import main

if __name__ == "__main__":
    main()
