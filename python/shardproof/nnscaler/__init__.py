# SPDX-License-Identifier: Apache-2.0
"""Reads nnScaler's pickled execution plans, without nnScaler and without executing the pickle.

import shardproof.nnscaler as sn
report = sn.verify("model_dp1.pkl", "model_dp2_pp2_tp2.pkl")
"""

from .graph import PlanError
from .plan import convert, verify

__all__ = ["PlanError", "convert", "verify"]
