"""Object stores and web servers: urls that read like paths, and the clients behind them."""
