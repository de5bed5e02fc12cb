"""Turn labelled requests into thresholds whose claim holds with a stated confidence: `tierline fit calibrate`."""
