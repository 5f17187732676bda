"""Structure search: how many contexts there are and when each acts, found from one context upwards in seconds."""

from mbrl_hdp.inference.search.search import Structure, Verdict, find_contexts

__all__ = ["Structure", "Verdict", "find_contexts"]
