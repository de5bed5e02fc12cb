"""Show Tierline at work without a model or a key: `tierline demo`.

tierline.yaml      the deployment, whose tiers answer from a script
adjustments.yaml   what is changed in the shipped policies, and the candidate that is tried as a canary
traffic.yaml       the requests
policies           write the adjusted policies and the candidate into the state folder
scenes             draw scenes of requests, the same for the same seed
traffic            send them, rate some answers, and say what came of them
"""
