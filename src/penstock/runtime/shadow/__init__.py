"""Shadow verification: what devices gave in chosen runs is computed again on the reference, behind
the caller's back.
"""

from penstock.runtime.shadow.variant import ShadowedVariant

__all__ = ["ShadowedVariant"]
