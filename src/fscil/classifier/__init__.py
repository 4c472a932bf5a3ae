"""fit / enroll / forget / predict / save / load for people with folders of photos."""

from fscil.classifier.checking import Check, ClassCheck
from fscil.classifier.decision import Thresholds
from fscil.classifier.doubts import Doubt
from fscil.classifier.model import Classifier
from fscil.classifier.prediction import Prediction
from fscil.classifier.stored import StoredClassifier

__all__ = ["Check", "ClassCheck", "Classifier", "Doubt", "Prediction", "StoredClassifier", "Thresholds"]
