"""Write the records of finished requests to the store, and charge what they cost, once each."""
