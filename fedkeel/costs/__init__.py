"""What an experiment would cost with another number of clients: found, calibrated, and computed."""
