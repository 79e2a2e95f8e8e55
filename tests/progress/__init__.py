"""Promise: who is behind, since when and why; metrics, alerts and the collection behind them."""
