"""The version of this source; a build takes it from here.

Metadata of installed distributions do not tell it: a checkout on the path has none, or another's.
"""

__version__ = "0.1.0"
