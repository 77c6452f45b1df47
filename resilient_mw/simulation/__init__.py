"""F2: the simulator. Real decisions in virtual time, in front of a plant that behaves like a service."""

from resilient_mw.simulation.arrivals import Arrivals, Bursts, Even, Poisson, Rate, Script
from resilient_mw.simulation.caller import Caller, OutgoingCall
from resilient_mw.simulation.client import Traffic
from resilient_mw.simulation.durations import Bimodal, Changing, Constant, Duration, Exponential
from resilient_mw.simulation.engine import Engine, Timer
from resilient_mw.simulation.measure import Figures, Levels, Measures, percentile
from resilient_mw.simulation.remote import Condition, Exchange, RemoteService
from resilient_mw.simulation.report import table
from resilient_mw.simulation.request import Outcome, Request
from resilient_mw.simulation.scenario import Scenario, Simulation, run_scenario
from resilient_mw.simulation.server import Server
from resilient_mw.simulation.service import EventLoop, Plant, PlantKind, Work, Workers
from resilient_mw.simulation.station import Station

__all__ = [
    "Arrivals",
    "Bimodal",
    "Bursts",
    "Caller",
    "Changing",
    "Condition",
    "Constant",
    "Duration",
    "Engine",
    "Even",
    "EventLoop",
    "Exchange",
    "Exponential",
    "Figures",
    "Levels",
    "Measures",
    "Outcome",
    "OutgoingCall",
    "Plant",
    "PlantKind",
    "Poisson",
    "Rate",
    "RemoteService",
    "Request",
    "Scenario",
    "Script",
    "Server",
    "Simulation",
    "Station",
    "Timer",
    "Traffic",
    "Work",
    "Workers",
    "percentile",
    "run_scenario",
    "table",
]
