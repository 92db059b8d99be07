# What `hetcomm` offers. At run time each name is loaded at its first use.

from hetcomm import functional as functional
from hetcomm import hooks as hooks
from hetcomm import plan as plan
from hetcomm._core import AbortedError as AbortedError
from hetcomm._core import Error as Error
from hetcomm._core import InvalidArgumentError as InvalidArgumentError
from hetcomm._core import PeerFailedError as PeerFailedError
from hetcomm._core import Store as Store
from hetcomm._core import TimeoutError as TimeoutError
from hetcomm._core import TransportError as TransportError
from hetcomm._core import VendorError as VendorError
from hetcomm._torch import Options as Options
from hetcomm._torch import ProcessGroupHetcomm as ProcessGroupHetcomm
from hetcomm.backend import deregister_buffer as deregister_buffer
from hetcomm.backend import register_buffer as register_buffer
from hetcomm.backend import trace as trace
from hetcomm.codecs import Feedback as Feedback
from hetcomm.codecs import codec as codec
from hetcomm.communicator import Communicator as Communicator
from hetcomm.diagnosis import PerformanceWarning as PerformanceWarning
from hetcomm.diagnosis import dump as dump
from hetcomm.diagnosis import metrics as metrics
from hetcomm.launch import torch_env as torch_env
from hetcomm.partitioning import partition as partition
from hetcomm.rendezvous import PrefixStore as PrefixStore
from hetcomm.shared import shared_empty as shared_empty
from hetcomm.store_server import TcpStoreServer as TcpStoreServer
from hetcomm.tcp_store import TcpStore as TcpStore
from hetcomm.work import Work as Work

__version__: str
