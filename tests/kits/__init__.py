"""What tests of several promises share: servers of the test, clusters, Apache's programs."""
