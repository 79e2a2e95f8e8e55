"""Seeds of the simulation that every run of the tests goes through."""
