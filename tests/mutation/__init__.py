"""Small defects made by rule, each run against the tests nearest to it; `make check-mutants`."""
