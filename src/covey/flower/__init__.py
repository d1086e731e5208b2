"""Covey on Flower: any of Covey's methods as a Flower strategy, and a ClientApp that answers it.

app = covey.flower.client_app(Net, load_data)                             # client_app.py
strategy = covey.flower.Strategy("fedacs", model=Net(), clients=20)       # server_app.py

The strategy also drives apps that know nothing of Covey; `mod` has them answer Covey's questions.
"""

from covey.errors import install

try:
    import flwr as flwr
except ModuleNotFoundError as error:
    error.add_note(f"covey.flower needs Flower: {install('flower')}.")
    raise

from covey.flower.client_mod import mod
from covey.flower.in_process_grid import InProcessGrid
from covey.flower.node_app import as_samples, client_app
from covey.flower.plain_messages import PlainClients
from covey.flower.protection import Protection
from covey.flower.strategy import Strategy

__all__ = ["InProcessGrid", "PlainClients", "Protection", "Strategy", "as_samples", "client_app", "mod"]
