"""The method contract and every system that keeps it.

A method is one file and one line here; a method of another package registers by an entry point in "fscil.methods", one
in a single file by `METHODS.register`. docs/extending.md has an example of each.
"""

from fscil.methods.alice import Alice
from fscil.methods.alice_plda import AlicePlda, CloserPlda, NcmPlda
from fscil.methods.base import Memory, Method
from fscil.methods.calibrated_statistics import CalibratedFeCam, CalibratedRanPac
from fscil.methods.cec import Cec
from fscil.methods.closer import Closer
from fscil.methods.eeil import EEIL
from fscil.methods.fact import Fact
from fscil.methods.fecam import FeCam
from fscil.methods.finetune import FineTune
from fscil.methods.icarl import ICarl
from fscil.methods.joint import BalancedJoint, BalancedJointMeans, Joint
from fscil.methods.lucir import Lucir
from fscil.methods.nc_fscil import NcFscil
from fscil.methods.ncm import BalancedNcm, EqualImagesNcm, Ncm
from fscil.methods.orco import Orco
from fscil.methods.ranpac import RanPac
from fscil.methods.savc import Savc
from fscil.methods.semantic_kd import SemanticKD
from fscil.methods.synthesized import Synthesized
from fscil.methods.teen import Teen
from fscil.methods.topic import Topic
from fscil.methods.warp import Warp
from fscil.runtime.registry import Registry

METHODS: Registry[type[Method]] = Registry(
    "method",
    "fscil.methods",
    {
        "alice": Alice,
        "finetune": FineTune,
        "joint": Joint,
        "icarl": ICarl,
        "eeil": EEIL,
        "lucir": Lucir,
        "topic": Topic,
        "cec": Cec,
        "semantic_kd": SemanticKD,
        "synthesized": Synthesized,
        "joint_balanced": BalancedJoint,
        "joint_balanced_ncm": BalancedJointMeans,
        "ncm": Ncm,
        "ncm_balanced": BalancedNcm,
        "ncm_equal_images": EqualImagesNcm,
        "ncm_plda": NcmPlda,
        "alice_plda": AlicePlda,
        "teen": Teen,
        "fact": Fact,
        "savc": Savc,
        "closer": Closer,
        "closer_plda": CloserPlda,
        "fecam": FeCam,
        "ranpac": RanPac,
        "c_fecam": CalibratedFeCam,
        "c_ranpac": CalibratedRanPac,
        "warp": Warp,
        "nc_fscil": NcFscil,
        "orco": Orco,
    },
)

__all__ = ["METHODS", "Alice", "Memory", "Method"]
