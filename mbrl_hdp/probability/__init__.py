"""Exact messages for hidden Markov chains and the algebra of Markov chains; tensors in, tensors out."""
