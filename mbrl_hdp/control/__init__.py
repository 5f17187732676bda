"""Planning and policies on the belief, through mbrl-lib."""
